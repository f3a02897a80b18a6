"""Texts that somebody wrote into a report to be obeyed, and what would obey them."""

import re
from html.parser import HTMLParser

#: A text for each way in which an output could take it for more than a text.
ALL = (
    "\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J",
    "\x9b31m\x9d0;title\x9c\x90q\x85",
    "\u202egnp.exe\u202c\u2066x\u2069",
    "a\u200bb\u200d\ufeff\u2060\u00ad\u3164\u2800",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)><!-- -->",
    "' onmouseover='alert(1)' x=\"",
    "![x](http://a.example/x.png)",
    "[x](javascript:alert(1)) [y]: http://a.example",
    "@mention org/team#12 user@0dedf65 GH-7 #123",
    "http://a.example www.a.example mail@a.example",
    "a|b|c \\| `|` \\`x\\`",
    "``` ` `` `code`` x",
    "*a* __b__ ~~c~~ $x$ $$\\frac{1}{0}$$ \\(x\\) :+1: :tada:",
    "line\r\nline\n\n# head\n- list\n| x |\n|---|\n",
    "&lt;b&gt; &#64;mention &copy; &amp",
    "{0} {1!r} {x} {{}} %s %(x)s ${HOME} $(id) `id`",
    "nul\0nul\x01\x7f",
    "half \udc80 \ud83d",
    '=HYPERLINK("http://a.example")',
    "+1", "-1", "@SUM(1)", "\t=1",
    "   ", "\t",
    "\U000e0041\U0010ffff\ufffe",
    "a" * 100_000,
    "<" * 20_000 + "`" * 20_001 + "|" * 20_000,
)  # fmt: skip

#: The same as a database or Parquet can hold them.
WHOLE = tuple(text.encode("utf-8", "replace").decode() for text in ALL)

_CODE = re.compile(r"<code>(?:[A-Za-z0-9 ]|&#\d+;)*</code>|(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_ACTIVE = (
    re.compile(r"<[A-Za-z/!?]"),
    re.compile(r"!?\[[^\]]*\][(\[:]"),
    re.compile(r"(?<!\w)@\w|\w@\w"),
    re.compile(r"#\d|\bGH-\d"),
    re.compile(r"://|www\.", re.IGNORECASE),
    re.compile(r"&#?\w+;?"),
    re.compile(r"(?<!\*)\*[^*\s]|~~|\$"),
    re.compile(r"(?<!\w)_+\w[^_]*\w?_"),
    re.compile(r"`"),
    re.compile(r":[\w+-]+:"),
)
#: What of our own Markdown stands there.
_OURS = re.compile(r"\*\*(?=\S)|(?<=\S)\*\*|\\(?=[-+=.)])")


class Tags(HTMLParser):
    """The tags and attributes of a fragment, in which each element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self._open = set(), set(), []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("br", "meta"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def obeyed_by_terminal(text):
    """The characters of `text` that a terminal obeys, or that hide or turn others; line ends aside."""
    return "".join(sorted({sign for sign in text if not sign.isprintable() and sign != "\n"}))


def active_in_markdown(text):
    """What of a text in Markdown is more than a text, our own bold and code aside."""
    rest = _OURS.sub("", _CODE.sub("", text))
    return [found[0] for pattern in _ACTIVE for found in pattern.finditer(rest)]
