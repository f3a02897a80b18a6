// A tree of calls as a flame graph: by one of several times, from callers to callees or the other way round.
"use strict";

const flame = (() => {
  const ROW = 20, LEAST = 0.0015;

  // Children of each node, and its own time: what none of them has.
  function linked(rows) {
    const nodes = rows.map(([parent, name, kind, count, ns, short]) => ({ parent, name, kind, count, ns, short, inside: [] }));
    const roots = [];
    for (const node of nodes) (node.parent === null ? roots : nodes[node.parent].inside).push(node);
    const ns = roots.reduce((sum, node) => sum + node.ns, 0);
    return { name: "all", kind: "", count: 0, ns, inside: roots };
  }

  // The tree from the inside out: own times by name, then by who called it.
  function inverted(tree) {
    const made = { name: "all", kind: "", count: 0, ns: tree.ns, inside: [] };
    const visit = (node, path) => {
      const own = Math.max(node.ns - node.inside.reduce((sum, one) => sum + one.ns, 0), 0);
      const whole = [node, ...path];
      if (own > 0 && node !== tree) {
        let place = made;
        for (const one of whole) {
          let found = place.inside.find((other) => other.name === one.name && other.kind === one.kind);
          if (!found) place.inside.push((found = { name: one.name, short: one.short, kind: one.kind, count: 0, ns: 0, inside: [] }));
          found.ns += own;
          if (one === node) found.count += node.count;
          place = found;
        }
      }
      for (const one of node.inside) visit(one, node === tree ? [] : whole);
    };
    visit(tree, []);
    const sort = (node) => { node.inside.sort((one, other) => other.ns - one.ns); node.inside.forEach(sort); };
    sort(made);
    return made;
  }

  function begin(root, data) {
    const stage = root.querySelector(".stage"), status = root.querySelector("[role=status]");
    const by = root.querySelector("select"), turned = root.querySelector("input[type=checkbox]");
    let tree, chosen;

    function draw() {
      const above = [];
      for (let node = chosen; node; node = node.above) above.unshift(node);
      const boxes = above.map((node, depth) => [node, 0, 1, depth]);
      let deepest = above.length;
      const lay = (node, left, width, depth) => {
        let at = left;
        for (const one of node.inside) {
          const wide = (one.ns / Math.max(node.ns, 1)) * width;
          if (wide >= LEAST) {
            boxes.push([one, at, wide, depth]);
            deepest = Math.max(deepest, depth + 1);
            lay(one, at, wide, depth + 1);
          }
          at += wide;
        }
      };
      lay(chosen, 0, 1, above.length);
      stage.style.height = `${deepest * ROW}px`;
      stage.replaceChildren(...boxes.map(([node, left, width, depth]) => {
        const box = document.createElement("button");
        box.type = "button";
        box.className = `box kind-${node.kind || "all"}`;
        box.textContent = node.short || node.name;
        box.title = `${node.name}\n${told(node)}`;
        box.style.left = `${100 * left}%`;
        box.style.width = `${100 * width}%`;
        box.style.top = `${depth * ROW}px`;
        box.addEventListener("click", () => { chosen = node; draw(); status.textContent = `${node.name}: ${told(node)}`; });
        return box;
      }));
    }

    function told(node) {
      const share = `${((100 * node.ns) / Math.max(tree.ns, 1)).toFixed(1)} %`;
      return `${timeline.duration(node.ns)}, ${share}` + (node.count ? `, ${node.count.toLocaleString("en-US")} times` : "");
    }

    function show() {
      tree = linked(data[by.value]);
      if (turned.checked) tree = inverted(tree);
      const place = (node) => node.inside.forEach((one) => { one.above = node; place(one); });
      place(tree);
      chosen = tree;
      status.textContent = "";
      draw();
    }

    by.addEventListener("change", show);
    turned.addEventListener("change", show);
    show();
  }

  return { begin, linked, inverted };
})();
