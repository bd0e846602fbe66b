"""A table as Markdown, as LaTeX, as HTML and as plain values: our line, and the paper's below it in italics."""

import csv
import io
import re
from collections.abc import Iterable
from html import escape

from fedperl.paper.content import NONE, TableContent

PRINTED = "paper"
"""What the line with the paper's numbers is called."""
SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "*": r"$^{*}$",
    "<": r"$<$",
    ">": r"$>$",
}


def markdown(content: TableContent) -> str:
    """Return the table as Markdown, its notes as a list below."""
    lines = [_line(["", *map(marked, content.columns)]), _line(["---", *("---:" for _ in content.columns)])]
    setting = ""
    for row in content.rows:
        if row.setting != setting:
            setting = row.setting
            lines.append(_line([f"**{setting}**", *("" for _ in content.columns)]))
        lines.append(_line([marked(row.label), *map(marked, row.ours)]))
        if row.paper:
            lines.append(
                _line([f"*{PRINTED}*", *(f"*{marked(cell)}*" if cell != NONE else NONE for cell in row.paper)])
            )
    return "\n".join([*lines, "", *(f"- {marked(note)}" for note in content.notes)]) + "\n"


def latex(content: TableContent, title: str, label: str) -> str:
    """Return the table as LaTeX, for a document that loads graphicx."""
    lines = [
        r"\begin{table*}[!t]",
        rf"\caption{{{tex(title)}. {tex(' '.join(content.notes))}}}",
        rf"\label{{{label}}}",
        r"\centering",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{ll{'c' * len(content.columns)}}}",
        r"\hline",
        " & ".join(["", "", *map(tex, content.columns)]) + r" \\",
        r"\hline",
    ]
    setting = content.rows[0].setting if content.rows else ""
    first = True
    for row in content.rows:
        if row.setting != setting:
            setting, first = row.setting, True
            lines.append(r"\hline")
        lines.append(" & ".join([tex(setting) if first else "", tex(row.label), *map(tex, row.ours)]) + r" \\")
        first = False
        if row.paper:
            cells = (rf"\textit{{{tex(cell)}}}" if cell != NONE else tex(NONE) for cell in row.paper)
            lines.append(" & ".join(["", rf"\textit{{{PRINTED}}}", *cells]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}}", r"\end{table*}", ""])


def html(content: TableContent, title: str) -> str:
    """Return the table as HTML, its notes as a list below."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    lines = []
    setting = ""
    for row in content.rows:
        if row.setting != setting:
            setting = row.setting
            span = len(content.columns) + 1
            lines.append(f'<tr class="total"><th scope="rowgroup" colspan="{span}">{escape(setting)}</th></tr>')
        lines.append(f'<tr><th scope="row">{escape(row.label)}</th>{_cells(row.ours)}</tr>')
        if row.paper:
            lines.append(f'<tr class="printed"><th scope="row">{PRINTED}</th>{_cells(row.paper)}</tr>')
    notes = "".join(f"<li>{escape(note)}</li>" for note in content.notes)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}"><table><thead><tr><td></td>{head}'
        f"</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        + (f'<ul class="soft">{notes}</ul>' if notes else "")
    )


def values(content: TableContent) -> str:
    """Return the table as csv, one line a cell, each as it is shown."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["setting", "row", "column", "ours", "paper"])
    for row in content.rows:
        theirs = row.paper or (NONE,) * len(row.ours)
        for column, ours, paper in zip(content.columns, row.ours, theirs, strict=True):
            writer.writerow([row.setting, row.label, column, *("" if cell == NONE else cell for cell in (ours, paper))])
    return file.getvalue()


def tex(text: str) -> str:
    """Return a text as LaTeX shows it."""
    return "".join(SPECIAL.get(character, character) for character in text)


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def marked(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))
