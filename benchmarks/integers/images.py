"""Images of the kind that trained networks see: photographs, faces, lines and pages of text.

Photographs and faces are those that scikit-image ships in its wheel, of which nothing but pictures is read (see
`benchmarks.real.packages`); text is drawn with the fonts that matplotlib ships. What calibration sees and what it does not are
other photographs, other faces and other sentences.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.integers.sentences import CALIBRATING
from benchmarks.real.packages import Package
from benchmarks.workloads.sentences import SENTENCES

Image = NDArray[np.uint8]
"""(height, width, 3), of 0 to 255."""
SCIKIT_IMAGE = Package("scikit-image", "0.26.0", "BSD-3-Clause", ("3.11", "manylinux_2_28_x86_64"))
_PHOTOGRAPHS = {
    True: ("astronaut.png", "coffee.png", "motorcycle_left.png", "camera.png", "brick.png", "retina.jpg", "coins.png"),
    False: ("chelsea.png", "rocket.jpg", "hubble_deep_field.jpg", "moon.png", "grass.png", "ihc.png", "page.png"),
}
"""By whether calibration sees them."""
_FACES = 100
"""How many of scikit-image's subset of Labeled Faces in the Wild are faces: the first ones. Calibration sees the even ones."""
_FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "DejaVuSerif-Italic", "STIXGeneral")


@cache
def _photographs(seen: bool) -> tuple[Any, ...]:
    from PIL import Image as pictures

    return tuple(pictures.open(SCIKIT_IMAGE.file(f"skimage/data/{name}")).convert("RGB") for name in _PHOTOGRAPHS[seen])


@cache
def _faces() -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.load(SCIKIT_IMAGE.file("skimage/data/lfw_subset.npy"))[:_FACES]
    return found


def photograph(rng: np.random.Generator, height: int, width: int, *, seen: bool) -> Image:
    """A part of a photograph, perhaps mirrored, darker or brighter."""
    pictures = _photographs(seen)
    picture = pictures[rng.integers(len(pictures))]
    across = min(picture.width, picture.height * width / height) * rng.uniform(0.5, 1.0)
    down = across * height / width
    left, top = rng.uniform(0, picture.width - across), rng.uniform(0, picture.height - down)
    taken = np.asarray(picture.resize((width, height), box=(left, top, left + across, top + down)), np.float64)
    if rng.random() < 0.5:
        taken = taken[:, ::-1]
    return _bytes(taken * rng.uniform(0.7, 1.2))


def people(rng: np.random.Generator, height: int, width: int, *, seen: bool) -> Image:
    """A part of a photograph with one to four faces in it, each in a cell of its own."""
    from PIL import Image as pictures

    image = photograph(rng, height, width, seen=seen).copy()
    cells = rng.permutation(4)[: rng.integers(1, 5)]
    for cell in cells:
        size = int(rng.uniform(0.2, 0.45) * min(height, width))
        own = (2 * rng.integers(_FACES // 2) + (not seen)) % _FACES
        face = pictures.fromarray(_bytes(255 * _faces()[own])).resize((size, size), pictures.Resampling.BICUBIC)
        top = int(cell // 2 * height / 2 + rng.uniform(0, height / 2 - size))
        left = int(cell % 2 * width / 2 + rng.uniform(0, width / 2 - size))
        tint = rng.uniform(0.75, 1.0, 3)
        image[top : top + size, left : left + size] = _bytes(np.asarray(face, np.float64)[..., None] * tint)
    return image


def words(rng: np.random.Generator, letters: int, *, seen: bool) -> str:
    """A few neighbouring words of a sentence, of at most so many letters together; one at least."""
    sentences = CALIBRATING if seen else SENTENCES
    own = sentences[rng.integers(len(sentences))].split()
    first = int(rng.integers(len(own)))
    found = own[first]
    for word in own[first + 1 :]:
        if len(found) + 1 + len(word) > letters:
            break
        found += f" {word}"
    return found


def line(rng: np.random.Generator, height: int, most: int, *, seen: bool) -> Image:
    """(height, up to `most`, 3): words in one of a few fonts, dark on light or light on dark, over faint noise."""
    from PIL import Image as pictures
    from PIL import ImageDraw

    font = _font(_FONTS[rng.integers(len(_FONTS))], int(rng.integers(26, 40)))
    text = words(rng, int(rng.integers(8, 22)), seen=seen)
    left, top, right, bottom = font.getbbox(text)
    margin = int(rng.integers(3, 9))
    size = (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin)
    light, dark = rng.uniform(170, 255, 3), rng.uniform(0, 90, 3)
    ground, ink = (light, dark) if rng.random() < 0.8 else (dark, light)
    picture = pictures.new("RGB", size, tuple(ground.astype(int)))
    ImageDraw.Draw(picture).text((margin - left, margin - top), text, font=font, fill=tuple(ink.astype(int)))
    width = min(most, max(1, round(size[0] * height / size[1])))
    taken = np.asarray(picture.resize((width, height), pictures.Resampling.BILINEAR), np.float64)
    return _bytes(taken + rng.normal(0, 4, taken.shape))


def page(rng: np.random.Generator, height: int, width: int, *, seen: bool) -> Image:
    """Paragraphs in two sizes of letters, and sometimes a photograph, on light paper."""
    from PIL import Image as pictures
    from PIL import ImageDraw

    paper = rng.uniform(220, 255, 3)
    picture = pictures.new("RGB", (width, height), tuple(paper.astype(int)))
    draw = ImageDraw.Draw(picture)
    if rng.random() < 0.4:
        side = int(rng.uniform(0.25, 0.4) * min(height, width))
        photo = photograph(rng, side, side, seen=seen)
        picture.paste(pictures.fromarray(photo), (width - side - 10, height - side - 10))
    size = int(rng.integers(11, 20))
    name = _FONTS[rng.integers(len(_FONTS))]
    top, first = float(rng.integers(4, 16)), True
    while top < height - 2 * size:
        font = _font(name, size + 8 if first else size)
        letters = max(6, int((width - 20) / (0.62 * font.size)))
        text = words(rng, int(rng.integers(letters // 2, letters + 1)), seen=seen)
        draw.text((10, top), text, font=font, fill=tuple(rng.integers(0, 90, 3).tolist()))
        top += font.size * rng.uniform(1.3, 2.2)
        first = False
    taken = np.asarray(picture, np.float64)
    return _bytes(taken + rng.normal(0, 3, taken.shape))


def resized(image: Image, height: int, width: int) -> Image:
    """At another size."""
    from PIL import Image as pictures

    return np.asarray(pictures.fromarray(image).resize((width, height), pictures.Resampling.BILINEAR))


@cache
def _font(name: str, size: int) -> Any:
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"), size)


def _bytes(values: NDArray[np.float64]) -> Image:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
