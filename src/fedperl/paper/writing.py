"""Tables and figures as files: Markdown, LaTeX, csv, SVG and PNG each, and one page of all of them."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from fedperl import __version__
from fedperl.files import write_durably
from fedperl.paper.content import Artefact, Content, FigureContent, TableContent
from fedperl.paper.formats import html, latex, markdown, marked, tex, values
from fedperl.paper.found import Found

PRIVATE = "Shows photographs of patients: it stays on this machine, is not passed on and never committed."
DPI = 200
FIGURE = r"""\begin{{figure*}}[!t]
\centering
\includegraphics[width=\textwidth]{{{file}}}
\caption{{{caption}}}
\label{{{label}}}
\end{{figure*}}
"""
DOCUMENT = r"""\documentclass{{article}}
\usepackage[T1]{{fontenc}}
\usepackage[margin=2cm]{{geometry}}
\usepackage{{graphicx}}
\begin{{document}}
{scale}
{parts}
\end{{document}}
"""
STYLE = """tr.printed th, tr.printed td { color: var(--soft); font-style: italic; }
main img { max-width: 100%; background: #fff; }
.bar { position: static !important; }"""


@dataclass(frozen=True)
class Written:
    """What was made, and where."""

    page: Path
    names: tuple[str, ...]


def write_artefact(artefact: Artefact, content: Content, folder: Path, found: Found) -> None:
    """Write one table or figure in each of its forms."""
    name, notes = artefact.name, _notes(content, found)
    table = content if isinstance(content, TableContent) else content.values
    if isinstance(content, FigureContent):
        for kind in ("svg", "png"):
            _write(folder / f"{name}.{kind}", drawn(content, kind), private=content.private)
        caption = f"{tex(artefact.title)}. {tex(' '.join(notes))}"
        # Without its ending, since LaTeX takes the PNG and not the SVG.
        _write(folder / f"{name}.tex", FIGURE.format(file=name, caption=caption, label=f"fig:{name}").encode())
        _write(folder / f"{name}.md", (_figure_markdown(artefact, content, notes)).encode())
    else:
        whole = TableContent(content.columns, content.rows, notes)
        _write(folder / f"{name}.tex", latex(whole, artefact.title, f"tab:{name}").encode())
        _write(folder / f"{name}.md", f"## {artefact.title}\n\n{markdown(whole)}".encode())
    if table is not None:
        _write(folder / f"{name}.csv", values(table).encode())


def write_pages(made: Sequence[tuple[Artefact, Content]], folder: Path, found: Found, name: str) -> Written:
    """Write one page, one Markdown file and one LaTeX document of that name with these tables and figures."""
    page = folder / f"{name}.html"
    private = any(isinstance(content, FigureContent) and content.private for _, content in made)
    _write(page, _page(made, found, private).encode(), private=private)
    text = [f"# FedPerl: the paper's tables and figures\n\n{marked(found.scale)}".rstrip() + "\n"]
    text += [(folder / f"{artefact.name}.md").read_text(encoding="utf-8") for artefact, _ in made]
    _write(folder / f"{name}.md", "\n".join(text).encode())
    parts = "\n".join(rf"\input{{{artefact.name}}}" + "\n" + r"\clearpage" for artefact, _ in made)
    _write(folder / f"{name}.tex", DOCUMENT.format(scale=tex(found.scale), parts=parts).encode())
    return Written(page, tuple(artefact.name for artefact, _ in made))


def drawn(content: FigureContent, kind: str) -> bytes:
    """Return the figure as a file's bytes, the same on every call."""
    import matplotlib as mpl

    file = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "fedperl", "svg.fonttype": "none"}):
        content.figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
    return file.getvalue()


def _page(made: Sequence[tuple[Artefact, Content]], found: Found, private: bool) -> str:
    css = (files("fedperl.report") / "assets" / "page.css").read_text(encoding="utf-8")
    navigation = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one, _ in made)
    told = filter(None, (found.scale, PRIVATE if private else ""))
    care = "".join(f'<p class="care">{escape(text)}</p>' for text in told)
    sections = "\n".join(_section(artefact, content) for artefact, content in made)
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>The paper's tables and figures</title>
<style>
{css}
{STYLE}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header><h1>The paper's tables and figures</h1>
<p>Ours, and in italics what the paper prints. {found.seeds} seed{"s" if found.seeds > 1 else ""}.</p></header>
<div class="bar"><nav aria-label="Sections"><ul>{navigation}</ul></nav></div>
<main id="main">
{care}
{sections}
</main>
<footer><p>Research software, not a medical device. Made by fedperl {__version__}.</p></footer>
</body>
</html>
"""


def _section(artefact: Artefact, content: Content) -> str:
    """Return one table or figure as a section of the page, which says the scale once for all."""
    heading = f'<h2 id="{artefact.name}-title">{escape(artefact.title)}</h2>'
    place = f'<p class="soft">In the paper: {escape(artefact.where)}.</p>' if artefact.where else ""
    if isinstance(content, TableContent):
        body = html(content, artefact.title)
    else:
        image = base64.b64encode(drawn(content, "svg")).decode()
        told = [*content.notes, *([PRIVATE] if content.private else [])]
        notes = "".join(f"<li>{escape(note)}</li>" for note in told)
        body = f'<figure><img alt="{escape(content.alt)}" src="data:image/svg+xml;base64,{image}"></figure>'
        body += f'<ul class="soft">{notes}</ul>' if notes else ""
        if content.values is not None:
            body += f"<details><summary>Its numbers</summary>{html(content.values, artefact.title)}</details>"
    return f'<section id="{artefact.name}" aria-labelledby="{artefact.name}-title">{heading}{place}{body}</section>'


def _figure_markdown(artefact: Artefact, content: FigureContent, notes: tuple[str, ...]) -> str:
    notes = tuple(marked(note) for note in notes)
    lines = [f"## {artefact.title}", "", f"![{marked(content.alt)}]({artefact.name}.png)", ""]
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _notes(content: Content, found: Found) -> tuple[str, ...]:
    """Return what must be known to read it: its own notes, the scale, and whether it may be passed on."""
    private = isinstance(content, FigureContent) and content.private
    return tuple(filter(None, (*content.notes, found.scale, PRIVATE if private else "")))


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    write_durably(path, content, mode=0o600 if private else 0o644)
