"""A picture of a layout: the zones with worker, share and speed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpmdask.layout.zones import Layout

# Pixels of the longer side, and the least of the shorter one.
_LONG, _SHORT = 480.0, 60.0
# Degrees between the colours of neighbouring workers: the golden angle repeats none.
_ANGLE = 137.508


def svg(layout: "Layout") -> str:
    """Return an SVG picture of a layout.

    Parameters
    ----------
    layout : Layout
        Its zones are drawn in worker order; speeds are written where it knows them.

    Returns
    -------
    str
        An ``<svg>`` element: a rectangle per zone with its worker, its share of the blocks and
        its speed, the same and its blocks as a tooltip, and a line on the whole layout.

    Examples
    --------
    >>> from fpmdask.layout import rows
    >>> "worker 0: 75.0 %" in svg(rows([3, 1], (4, 4)))
    True
    """
    scale = _LONG / max(layout.shape)
    high, wide = (max(side * scale, _SHORT) for side in layout.shape)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 2:.0f}" height="{high + 22:.0f}" '
        f'viewBox="-1 -1 {wide + 2:.2f} {high + 22:.2f}" font-family="sans-serif" font-size="11">'
    ]
    down, across = high / layout.shape[0], wide / layout.shape[1]
    for worker, (zone, area) in enumerate(zip(layout.zones, layout.areas, strict=True)):
        words = _words(layout, worker, area)
        for found in zone:
            if found.area:
                box = (found.left * across, found.top * down)
                size = (found.width * across, found.height * down)
                blocks = f"{found.height} x {found.width} blocks at ({found.top}, {found.left})"
                parts.append(_box(worker, words, blocks, box, size))
    parts.append(f'<text x="0" y="{high + 15:.1f}">{_summary(layout)}</text></svg>')
    return "".join(parts)


def _words(layout: "Layout", worker: int, area: int) -> list[str]:
    share = 100 * area / (layout.shape[0] * layout.shape[1])
    words = [f"worker {worker}", f"{share:.1f} %"]
    if layout.speeds is not None:
        words.append(f"speed {layout.speeds[worker]:.4g}")
    return words


def _box(
    worker: int, words: list[str], blocks: str, at: tuple[float, float], size: tuple[float, float]
) -> str:
    (x, y), (wide, high) = at, size
    hue = worker * _ANGLE % 360
    tip = f"{words[0]}: {', '.join(words[1:])}, {blocks}"
    parts = [
        f'<g><title>{tip}</title><rect x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" '
        f'height="{high:.2f}" fill="hsl({hue:.0f},60%,80%)" stroke="#333"/>'
    ]
    lines = (words if wide >= 60 else words[0].split()[1:])[: int(high // 14)]
    middle = y + high / 2 - 7 * (len(lines) - 1) + 4
    parts += [
        f'<text x="{x + wide / 2:.2f}" y="{middle + 14 * i:.2f}" text-anchor="middle" '
        f'fill="#111">{line}</text>'
        for i, line in enumerate(lines)
    ]
    return "".join(parts) + "</g>"


def _summary(layout: "Layout") -> str:
    words = (
        f"{layout.shape[0]} x {layout.shape[1]} blocks, half-perimeter "
        f"{layout.half_perimeter:.3f} (at least {layout.lower_bound:.3f})"
    )
    return words if layout.converged else f"{words}; not converged"
