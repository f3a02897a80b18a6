"""Damaged reports by number: the same number is always the same damage to the same report."""

import gzip
import shutil
from itertools import cycle
from pathlib import Path
from random import Random
from typing import NamedTuple

from fuzz import damage

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
    "nsys sqlite": [*damage.BYTES, *damage.PAGES, *(f"table {how}" for how in damage.TABLES)],
    "nsys folder": [*damage.BYTES, *(f"table {how}" for how in damage.FRAMES), "file"],
    "torch json": [*damage.BYTES, *(f"tree {how}" for how in damage.TREES), "tree repeat_key"],
    "torch json.gz": [*damage.BYTES, *(f"tree {how}" for how in damage.TREES)],
    "ncu csv": [*damage.BYTES, *(f"cells {how}" for how in damage.CELLS)],
    "ncu rep": [*damage.BYTES],
    "capture": [*damage.BYTES, "manifest flip_bit", *(f"manifest {how}" for how in damage.TREES), "file"],
    "baseline": [*damage.BYTES, *damage.BASELINE],
}

#: Damage that never passes without a word. All other kinds can leave a report that could as well be a true one: a
#: flipped bit may be a digit of a time, and rows that are gone may never have been there.
TOLD = {
    *((form, "cut") for form in ("nsys sqlite", "nsys folder", "torch json", "torch json.gz", "ncu rep")),
    *(("torch json.gz", how) for how in damage.BYTES),
    *(("baseline", how) for how in (*damage.BYTES, *damage.SEEN)),
    *(("nsys sqlite", how) for how in ("lose", "repeat", "insert", "lose_pages", "copy_page", "zero_page")),
}


class Case(NamedTuple):
    """One damaged report: how `seed`, a report of a format, was damaged; `number` decides where."""

    form: str
    seed: Path
    damage: str
    number: int

    def write(self, folder):
        """The damaged report, written into an empty `folder`."""
        target = folder / self.seed.name
        rng = Random(f"{self.form} {self.seed.name} {self.damage} {self.number}")
        (shutil.copytree if self.seed.is_dir() else shutil.copyfile)(self.seed, target)
        kind, _, how = self.damage.rpartition(" ")
        if kind == "table":
            (damage.damage_folder if target.is_dir() else damage.damage_database)(rng, target, how)
        elif how == "file":
            damage.damage_file(rng, target)
        else:
            files = sorted(path for path in target.glob("*") if path.is_file())
            file = target / "manifest.json" if kind == "manifest" else rng.choice(files) if files else target
            file.write_bytes(_damaged(rng, file, kind, how))
        return target


def _damaged(rng, file, kind, how):
    """What is in a file, damaged."""
    data = file.read_bytes()
    if kind in ("tree", "manifest"):
        packed = file.suffix == ".gz"
        text = gzip.decompress(data) if packed else data
        ways = {"flip_bit": damage.flip_bit, "repeat_key": damage.repeat_key}
        made = ways[how](rng, text) if how in ways else damage.damage_json(rng, text, how)
        return gzip.compress(made, 1, mtime=0) if packed else made
    if kind == "cells":
        return damage.damage_csv(rng, data, how)
    return damage.damage_baseline(rng, data, kind, how) if kind else (damage.BYTES | damage.PAGES)[how](rng, data)


def cases(form, first=0):
    """All cases of a format from number `first` on, endlessly: each kind of damage to each report in turn."""
    every = cycle([(seed, how) for seed in SEEDS[form] for how in DAMAGE[form]])
    return (Case(form, seed, how, number) for number, (seed, how) in enumerate(every) if number >= first)
