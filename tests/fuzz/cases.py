"""Damaged reports by number: the same number is always the same damage to the same report."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from fuzz import damage_baseline, damage_bytes, damage_tables, damage_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
REPORTS, SAMPLES = ROOT / "tests" / "reports", ROOT / "sample_reports"

#: Reports of each format, small ones, since each is read many thousand times.
SEEDS = {
    "nsys sqlite": [REPORTS / f"{name}.sqlite" for name in ("add", "nvtx", "graph_node", "old/marks_2022_4")],
    "nsys folder": [REPORTS / "nvtx.parquetdir"],
    "torch json": [REPORTS / "torch_versions" / f"torch-{version}.json" for version in ("1.8", "1.12", "2.0", "2.4")],
    "torch json.gz": [SAMPLES / "square" / "torch.json.gz"],
    "ncu csv": [REPORTS / "ncu" / f"add.{page}.csv" for page in ("details", "raw", "source")],
    "ncu rep": [SAMPLES / "add_parallel" / "ncu.ncu-rep"],
    "capture": [SAMPLES / "add"],
    "baseline": [SAMPLES / "loop_base.kz", SAMPLES / "seeds" / "gelu_compile.kz"],
}

#: What can be damaged in each format: its bytes, its pages, its rows, columns, values and types, its structure.
DAMAGE = {
    "nsys sqlite": [*damage_bytes.BYTES, *damage_bytes.PAGES, *(f"table {how}" for how in damage_tables.TABLES)],
    "nsys folder": [*damage_bytes.BYTES, *(f"table {how}" for how in damage_tables.FRAMES), "file"],
    "torch json": [*damage_bytes.BYTES, *(f"tree {how}" for how in damage_texts.TREES), "tree repeat_key"],
    "torch json.gz": [*damage_bytes.BYTES, *(f"tree {how}" for how in damage_texts.TREES)],
    "ncu csv": [*damage_bytes.BYTES, *(f"cells {how}" for how in damage_texts.CELLS)],
    "ncu rep": [*damage_bytes.BYTES],
    "capture": [*damage_bytes.BYTES, "manifest flip_bit", *(f"manifest {how}" for how in damage_texts.TREES), "file"],
    "baseline": [*damage_bytes.BYTES, *damage_baseline.KINDS],
}

#: Damage that never passes without a word. All other kinds can leave a report that could as well be a true one: a
#: flipped bit may be a digit of a time, and rows that are gone may never have been there.
TOLD = {
    *((form, "cut") for form in ("nsys sqlite", "nsys folder", "torch json", "torch json.gz", "ncu rep")),
    *(("torch json.gz", how) for how in damage_bytes.BYTES),
    *(("baseline", how) for how in (*damage_bytes.BYTES, *damage_baseline.SEEN)),
    *(("nsys sqlite", how) for how in ("lose", "repeat", "insert", "lose_pages", "copy_page", "zero_page")),
}


@dataclass(frozen=True)
class Case:
    """One damaged report: how `seed`, a report of a format, was damaged; `number` decides where."""

    form: str
    seed: Path
    damage: str
    number: int

    def write(self, folder: Path) -> Path:
        """The damaged report, written into an empty `folder`."""
        target = folder / self.seed.name
        rng = Random(f"{self.form} {self.seed.name} {self.damage} {self.number}")
        if self.seed.is_dir():
            shutil.copytree(self.seed, target)
        else:
            shutil.copyfile(self.seed, target)
        kind, _, how = self.damage.rpartition(" ")
        if self.damage in damage_baseline.KINDS and self.form == "baseline":
            target.write_bytes(damage_baseline.damage(rng, target.read_bytes(), kind, how))
        elif self.damage == "file":
            damage_tables.damage_file(rng, target)
        elif kind == "table" and target.is_dir():
            damage_tables.damage_folder(rng, target, how)
        elif kind == "table":
            damage_tables.damage_database(rng, target, how)
        elif kind in ("tree", "manifest"):
            _damage_tree(rng, target / "manifest.json" if kind == "manifest" else target, how)
        elif kind == "cells":
            target.write_bytes(damage_texts.damage_csv(rng, target.read_bytes(), how))
        else:
            _damage_bytes(rng, target, how)
        return target


def _damage_bytes(rng: Random, target: Path, how: str) -> None:
    if target.is_dir():
        target = rng.choice(sorted(path for path in target.iterdir() if path.is_file()))
    made = (damage_bytes.BYTES | damage_bytes.PAGES)[how](rng, target.read_bytes())
    target.write_bytes(made)


def _damage_tree(rng: Random, target: Path, how: str) -> None:
    data = target.read_bytes()
    packed = target.suffix == ".gz"
    text = gzip.decompress(data) if packed else data
    if how == "flip_bit":
        made = damage_bytes.flip_bit(rng, text)
    elif how == "repeat_key":
        made = damage_texts.repeat_key(rng, text)
    else:
        made = damage_texts.damage_json(rng, text, how)
    target.write_bytes(gzip.compress(made, 1, mtime=0) if packed else made)


def cases(form: str, first: int = 0) -> Iterator[Case]:
    """All cases of a format, endlessly: each kind of damage to each report in turn."""
    number = 0
    while True:
        for seed in SEEDS[form]:
            for damage in DAMAGE[form]:
                if number >= first:
                    yield Case(form, seed, damage, number)
                number += 1
