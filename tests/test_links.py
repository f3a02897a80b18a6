"""Documentation pages lead somewhere: links, anchors, the index, and the commands that they name."""

import re
import shlex

import click
import pytest

from kanalyze import catalog
from kanalyze.cli import kanalyze as command_line
from support.command import ROOT
from support.shares import some

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*/README.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def ids(path):
    return str(path.relative_to(ROOT))


def prose(path):
    """A page without what is fenced in it: what programs print is no link and no command to try."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", some(path for path in PAGES if LINK.search(prose(path))), ids=ids)
def test_links_lead_to_files_and_headings_that_exist(path):
    for link in some(LINK.findall(prose(path))):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        found = path.parent / target if target else path
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


def test_every_page_of_docs_is_in_the_index_once():
    listed = re.findall(r"^- \[([^\]]+)\]\(\1\): \S", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*") if path.suffix in (".md", ".ipynb")}
    assert sorted(listed) == sorted(there - {"index.md"})


#: What a manifest says of its kind, which is no command.
KIND = "kanalyze capture"

#: Commands that were, which a list of changes names.
FORMER = ("name", "roofline", "source", "tables", "tree", "workloads")


def named(path):
    """The commands of kanalyze that a page gives in backquotes, or in lines of their own, with their arguments."""
    text = prose(path).replace("\\|", "|")
    inline = re.findall(r"`(kanalyze [a-z][^`]*)`", text)
    found = [*inline, *re.findall(r"^ {4}(kanalyze [a-z].*)$", text, flags=re.MULTILINE)]
    former = FORMER if path.name == "CHANGELOG.md" else ()
    return [" ".join(one.split()) for one in found if one != KIND and one.split()[1] not in former]


@pytest.mark.parametrize("path", some(path for path in PAGES if named(path)), ids=ids)
def test_commands_in_the_text_have_the_options_and_tables_that_they_name(path):
    context = click.Context(command_line)
    for command in some(named(path)):
        # as a shell has it: no comment, and nothing that is the program's
        words = shlex.split(command.partition(" -- ")[0], comments=True)[1:]
        name, known, arguments = command_line.resolve_command(context, words)
        options = {option for parameter in known.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {argument.partition("=")[0] for argument in arguments if re.match(r"--?[a-z]", argument)}
        assert used <= options | {"--help"}, command
        if name == "show" and arguments and arguments[0] != "TABLE" and not arguments[0].startswith("-"):
            assert set(arguments[0].split("|")) <= set(catalog.every_name()), command
