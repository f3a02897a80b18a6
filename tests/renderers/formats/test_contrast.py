"""Contrast by measure: the ratios of WCAG 2.2 (1.4.3 and 1.4.11) of texts and colours, in both themes."""

import colorsys
import re

import pytest

from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.renderers.page import COLOURS, DARK
from support.command import ROOT

FOLDER = ROOT / "analyzer" / "renderers" / "formats"
STYLE = (FOLDER / "page.css").read_text()
SCRIPT = (FOLDER / "timeline.js").read_text()

#: The least ratio of texts, and of what is no text but has to be seen.
TEXT, SHAPE = 4.5, 3.0

THEMES = ("light", "dark")


def variables(theme):
    """The colours of a theme by name."""
    own = re.search(rf'data-theme="{theme}"\] \{{(.*?)\}}', STYLE, re.DOTALL)[1]
    both = re.search(r"^:root \{(.*?)\}", STYLE, re.DOTALL | re.MULTILINE)[1]
    return dict(re.findall(r"--(\w+): (#\w{6});", both + own))


def luminance(colour):
    """Relative luminance as WCAG 2.2 defines it."""
    if isinstance(colour, str):
        text = colour.removeprefix("#")
        text = "".join(letter * 2 for letter in text) if len(text) == 3 else text
        colour = [int(text[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_texts_can_be_read_and_what_is_drawn_can_be_seen(theme):
    colours = variables(theme)
    texts = [(text, on) for text in ("ink", "dim", "link") for on in ("paper", "band")]
    for text, on in [*texts, ("paper", "accent")]:
        assert contrast(colours[text], colours[on]) >= TEXT, (text, on)
    for tone in (*BUCKETS, "range", "operator", "python", "call", "iteration", "odd"):
        assert contrast(colours[tone], colours["paper"]) >= SHAPE, tone


def test_labels_on_buckets_can_be_read():
    """In the timeline, where kernels are mixed by name, and in print."""
    told = re.search(r'if \((\[.*?\])\.includes\(kind\)\) return "#fff";', SCRIPT)[1]
    for bucket in BUCKETS:
        assert (bucket in DARK) == (f'"{bucket}"' in told)
        assert contrast(COLOURS[bucket], "#fff" if bucket in DARK else "#111") >= TEXT


@pytest.mark.parametrize("theme", THEMES)
def test_labels_on_ranges_can_be_read_whatever_their_hue(theme):
    found = re.search(r"% 360\} \$\{this\.dark \? (\d+) : (\d+)\}% \$\{this\.dark \? (\d+) : (\d+)\}%\)", SCRIPT)
    dark_share, share, dark_light, light = (int(one) / 100 for one in found.groups())
    saturation, lightness = (dark_share, dark_light) if theme == "dark" else (share, light)
    for hue in range(360):
        colour = colorsys.hls_to_rgb(hue / 360, lightness, saturation)
        assert contrast(colour, "#fff" if theme == "dark" else "#111") >= TEXT


def test_boxes_of_the_call_tree_can_be_read():
    boxes = re.findall(r"\.flame \.box[^{]*\{[^}]*background: (#\w+);", STYLE)
    assert len(boxes) >= 6
    assert all(contrast(colour, "#111") >= TEXT for colour in boxes)
