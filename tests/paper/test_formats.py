"""One table in four forms, and files that are the same on every call."""

import csv
import io
import re
from html.parser import HTMLParser

from fedperl.paper.content import NONE, Row, TableContent
from fedperl.paper.formats import html, latex, markdown, values

TABLE = TableContent(
    ("F1", "95 %_of|all"),
    (
        Row("SSFL", ("0.5 (0.4) ± 0.1", "1*"), ("0.7", NONE), "SSFL"),
        Row("A & B <b>", ("0.6", "[+0.1, +0.2]*"), (), "with PA"),
    ),
    ("A note with 5 % & more.",),
)


def test_markdown_shows_ours_and_below_it_the_papers() -> None:
    lines = markdown(TABLE).splitlines()
    assert {line.count("|") - line.count("\\|") for line in lines if line.startswith("|")} == {4}
    at = lines.index("| SSFL | 0.5 (0.4) ± 0.1 | 1\\* |")
    assert lines[at + 1] == f"| *paper* | *0.7* | {NONE} |"
    assert "| **with PA** |  |  |" in lines
    assert "A & B \\<b\\>" in markdown(TABLE)


def test_latex_is_balanced_and_escaped() -> None:
    text = latex(TABLE, "Title, 5 %", "tab:x")
    assert re.findall(r"\\begin\{(\w+\*?)\}", text) == ["table*", "tabular"]
    assert re.findall(r"\\end\{(\w+\*?)\}", text) == ["tabular", "table*"]
    body = re.sub(r"\\[&%_$#{}]", "", text)
    assert body.count("{") == body.count("}")
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 4  # the header, two of ours, one of the paper's
    assert {line.count("&") for line in rows} == {3}
    assert "%" not in body.replace("!}{%", "")  # the rest of such a line would be a comment
    assert r"$\pm$" in text
    assert "±" not in text


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def test_html_is_well_formed_and_shows_every_cell() -> None:
    parser = _Cells()
    parser.feed(html(TABLE, 'a "title"'))
    assert not parser.open
    for cell in ("F1", "0.5 (0.4) ± 0.1", "0.7", "A & B <b>", "[+0.1, +0.2]*", "paper", "with PA"):
        assert cell in parser.cells


def test_values_have_one_line_a_cell() -> None:
    lines = list(csv.DictReader(io.StringIO(values(TABLE))))
    assert len(lines) == 4
    assert lines[0] == {"setting": "SSFL", "row": "SSFL", "column": "F1", "ours": "0.5 (0.4) ± 0.1", "paper": "0.7"}
    assert lines[1]["paper"] == ""
