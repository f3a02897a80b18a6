// The page around the timeline: sorting and filtering of tables, names that unfold, theme, links into the timeline.
"use strict";

(() => {
  const root = document.documentElement;

  // ---- theme -----------------------------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  let shown;
  function theme(name) {
    root.dataset.theme = name;
    shown?.colours();
    shown?.draw();
  }
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));

  // on paper it is always light
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); });
  addEventListener("afterprint", () => theme(before));

  // ---- tables ----------------------------------------------------------------------------------------------------

  function sorted(table, column, button) {
    const body = table.tBodies[0];
    const falls = button.parentElement.getAttribute("aria-sort") !== "descending";
    for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
    button.parentElement.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const absent = (row) => row.cells[column].textContent === "";
    const order = (one, other) => {
      if (absent(one) !== absent(other)) return absent(one) ? 1 : -1;
      const [a, b] = [value(one), value(other)];
      const less = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return falls ? -less : less;
    };
    body.append(...[...body.rows].sort(order));
  }

  for (const section of document.querySelectorAll("section.table")) {
    const table = section.querySelector("table");
    table.tHead.rows[0].querySelectorAll("button").forEach((button, column) =>
      button.addEventListener("click", () => sorted(table, column, button)));
    const field = section.querySelector("input[type=search]");
    field?.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      let left = 0;
      for (const row of table.tBodies[0].rows) {
        const texts = [row.textContent, ...[...row.querySelectorAll("td[data-other]")].map((cell) => cell.dataset.other)];
        row.hidden = !texts.some((text) => text.toLowerCase().includes(wanted));
        left += row.hidden ? 0 : 1;
      }
      section.querySelector("[role=status]").textContent = wanted ? `${left} of ${table.tBodies[0].rows.length} rows` : "";
    });
  }

  // A name that is shortened has the whole one beside it; they change places.
  function unfold(name, open) {
    if (name.classList.contains("open") === open) return;
    name.classList.toggle("open", open);
    if (name.dataset.other) [name.textContent, name.dataset.other] = [name.dataset.other, name.textContent];
  }

  // by keyboard all names of a table unfold at once
  for (const region of document.querySelectorAll(".scroll"))
    region.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.target !== region) return;
      const names = [...region.querySelectorAll("td.name")], open = !names.every((name) => name.classList.contains("open"));
      for (const name of names) unfold(name, open);
    });

  document.addEventListener("click", (event) => {
    const name = event.target.closest("td.name");
    if (name && getSelection().isCollapsed) unfold(name, !name.classList.contains("open"));
  });

  // ---- points of pictures ----------------------------------------------------------------------------------------

  for (const chart of document.querySelectorAll("section.chart")) {
    const told = chart.querySelector("[data-role=told]");
    for (const kind of ["pointerover", "focusin", "click"])
      chart.addEventListener(kind, (event) => {
        if (event.target.matches("circle.point")) told.textContent = event.target.getAttribute("aria-label");
      });
  }

  // ---- links into the timeline -----------------------------------------------------------------------------------

  for (const button of document.querySelectorAll("button[data-find], button[data-window]"))
    button.addEventListener("click", () => {
      if (!shown) return;
      document.getElementById("timeline").scrollIntoView();
      shown.canvas.focus({ preventScroll: true });
      if (button.dataset.window) {
        const [low, high] = button.dataset.window.split("..").map(Number);
        shown.show(low, high, 0.02);
      }
      if (button.dataset.find) shown.search(button.dataset.find, true);
    });

  for (const link of document.querySelectorAll("a[href^='#']"))
    link.addEventListener("click", (event) => {
      const to = document.getElementById(link.getAttribute("href").slice(1));
      if (!to) return;
      event.preventDefault();  // the address is the timeline's place
      (to.closest("details") ?? to.querySelector(":scope > details"))?.setAttribute("open", "");
      to.scrollIntoView();
      to.focus({ preventScroll: true });
    });

  for (const tree of document.querySelectorAll("section.flame"))
    flame.begin(tree, JSON.parse(tree.querySelector("script").textContent));

  const place = document.getElementById("timeline");
  if (place)
    timeline.begin(place).then(
      (made) => {
        shown = made;
        window.kanalyzeTimeline = made;
        theme(root.dataset.theme);
      },
      (error) => {
        place.querySelector("[data-role=status]").textContent = `The timeline cannot be shown: ${error.message}`;
      },
    );
})();
