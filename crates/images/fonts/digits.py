"""Writes src/scenes/digits.rs: the outlines of ten digits of Noto Sans Bold, as crates/view has it.

Run in this folder with fontTools 4.68; the result is in the repository.
"""

from fontTools.pens.basePen import decomposeQuadraticSegment
from fontTools.pens.recordingPen import DecomposingRecordingPen
from fontTools.ttLib import TTFont

font = TTFont("../../view/fonts/NotoSans-Bold.ttf")
glyphs, names = font.getGlyphSet(), font.getBestCmap()

lines = [
    "//! Outlines of the digits of Noto Sans Bold (SIL Open Font License 1.1, `fonts/OFL.txt`).",
    "//!",
    "//! Made by `fonts/digits.py`; units of 1/1000 of the font's size, `y` upwards from the line that digits stand on.",
    "",
    "/// A step of an outline; each contour starts with a move and is closed.",
    "#[derive(Clone, Copy)]",
    "pub(super) enum Step {",
    "    /// Starts a contour here.",
    "    Move(i16, i16),",
    "    /// A straight line to here.",
    "    Line(i16, i16),",
    "    /// A quadratic curve by way of the first point to the second.",
    "    Curve(i16, i16, i16, i16),",
    "}",
    "use Step::{Curve, Line, Move};",
    "",
    "/// The digits from 0 to 9.",
    "#[rustfmt::skip]",
    "pub(super) const DIGITS: [&[Step]; 10] = [",
]
scale = 1000 / font["head"].unitsPerEm
for digit in "0123456789":
    pen = DecomposingRecordingPen(glyphs)
    glyphs[names[ord(digit)]].draw(pen)
    steps = []
    numbers = lambda *points: ", ".join(str(round(v * scale)) for point in points for v in point)
    for kind, points in pen.value:
        if kind == "moveTo":
            steps.append(f"Move({numbers(*points)})")
        elif kind == "lineTo":
            steps.append(f"Line({numbers(*points)})")
        elif kind == "qCurveTo":
            steps += [f"Curve({numbers(*both)})" for both in decomposeQuadraticSegment(points)]
        else:
            assert kind == "closePath", kind
    lines.append("    &[")
    while steps:
        lines.append("        " + ", ".join(steps[:5]) + ",")
        steps = steps[5:]
    lines.append("    ],")
lines.append("];")
open("../src/scenes/digits.rs", "w").write("\n".join(lines) + "\n")
