"""Pictures drawn as SVG, by hand: no plotting library is needed to see who holds what."""

from collections.abc import Mapping
from html import escape

COLOURS = ("#b5364b", "#8a5a3c", "#e08a3c", "#d9b44a", "#7d8f69", "#4f8a8b", "#6a5b95", "#3b5b92", "#9aa0a6", "#c46ba0")
GREY = "#d0d0d0"
LEFT, TOP, WIDTH, BAR, GAP = 70, 34, 560, 20, 8


def class_counts_svg(counts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> str:
    """Return one bar a holder, as long as it has images, divided by class; hover for the numbers.

    Args:
        counts: holder -> part -> class -> images, as `fedperl.data.audit.class_counts` gives them.
    """
    totals = {holder: _over_parts(parts) for holder, parts in counts.items()}
    totals = {holder: classes for holder, classes in totals.items() if sum(classes.values())}
    most = max((sum(classes.values()) for classes in totals.values()), default=1)
    names = [name for name in next(iter(totals.values()), {}) if any(classes[name] for classes in totals.values())]
    colour = {name: GREY if name == "no label" else COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = TOP + len(totals) * (BAR + GAP) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="Images of each class, by holder">',
        f'<rect width="100%" height="{height}" fill="white"/>',
    ]
    for i, name in enumerate(names):
        left = LEFT + i * (WIDTH + 60) // max(1, len(names))
        lines.append(f'<rect x="{left}" y="8" width="12" height="12" fill="{colour[name]}"/>')
        lines.append(f'<text x="{left + 16}" y="18">{escape(name)}</text>')
    for i, (holder, classes) in enumerate(totals.items()):
        y, x = TOP + i * (BAR + GAP), float(LEFT)
        label = holder if holder == "server" else f"client {holder}"
        lines.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        for name in names:
            width = WIDTH * classes[name] / most
            if width:
                title = f"<title>{escape(label)}, {escape(name)}: {classes[name]}</title>"
                box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
                lines.append(f'<rect {box} fill="{colour[name]}">{title}</rect>')
            x += width
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{sum(classes.values())}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _over_parts(parts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for classes in parts.values():
        for name, count in classes.items():
            totals[name] = totals.get(name, 0) + count
    return totals
