"""One way to draw, two kinds of picture: an SVG element for the page, and a PNG file. Coordinates are pixels from the top left."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
PAPER = "#fdfdfb"


class Canvas(ABC):
    """What a picture is made of. Colours are `#rrggbb`."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    @abstractmethod
    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None: ...

    @abstractmethod
    def line(self, points: Sequence[Point], colour: str, width: float = 1.0) -> None: ...

    @abstractmethod
    def text(self, x: float, y: float, words: str, colour: str, size: int = 14, anchor: Anchor = "start") -> None:
        """`y` is the base line."""


class Svg(Canvas):
    """Gives an SVG element as `str(svg)`."""

    def __init__(self, width: int, height: int, label: str) -> None:
        super().__init__(width, height)
        self._label, self._parts = label, list[str]()
        self.box(0, 0, width, height, PAPER)

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def line(self, points: Sequence[Point], colour: str, width: float = 1.0) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>')

    def text(self, x: float, y: float, words: str, colour: str, size: int = 14, anchor: Anchor = "start") -> None:
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>')

    def __str__(self) -> str:
        head = f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self._label)}">'
        return "\n".join([head, *self._parts, "</svg>"])


class Png(Canvas):
    """A PNG file, of twice as many pixels each way."""

    SCALE = 2

    def __init__(self, width: int, height: int) -> None:
        super().__init__(width, height)
        self._image = Image.new("RGB", (width * self.SCALE, height * self.SCALE), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        left, top = round(x * self.SCALE), round(y * self.SCALE)
        right, bottom = round((x + width) * self.SCALE), round((y + height) * self.SCALE)
        self._draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=colour)

    def line(self, points: Sequence[Point], colour: str, width: float = 1.0) -> None:
        scaled = [(x * self.SCALE, y * self.SCALE) for x, y in points]
        self._draw.line(scaled, fill=colour, width=max(1, round(width * self.SCALE)), joint="curve")

    def text(self, x: float, y: float, words: str, colour: str, size: int = 14, anchor: Anchor = "start") -> None:
        font = ImageFont.load_default(size * self.SCALE)
        place = {"start": "ls", "middle": "ms", "end": "rs"}[anchor]
        self._draw.text((x * self.SCALE, y * self.SCALE), words, fill=colour, font=font, anchor=place)

    def save(self, path: Path) -> Path:
        self._image.save(path)
        return path
