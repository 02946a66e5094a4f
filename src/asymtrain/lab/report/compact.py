"""The SVG of a figure for a page, without what nobody can see: half of a page would be digits, groups and styles.

What is drawn stays where it is, to a tenth of a point; words come last, so that they lie on top.
"""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import count, groupby
from xml.etree.ElementTree import Element

import numpy as np
import numpy.typing as npt
import PIL.Image

Points = npt.NDArray[np.float64]

NAMESPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
SVG, LINK = (f"{{{address}}}" for address in NAMESPACES.values())
FONTS = "'DejaVu Sans', sans-serif"
TOLERANCE = 4  # tenths of a point by which a line may miss a point that is left out: half a pixel
SAME = 0.03  # points by which two paths may differ and be drawn as one: the input has hundredths
FEW = 8  # lines of a path that is left as it is, such as a mark
CLIP = re.compile(r"url\(#(.+)\)")
MATRIX = re.compile(r"matrix\((\S+) 0 0 (\S+) (\S+) (\S+)\)")
DOT = re.compile(r"M0 ([\d.]+)(?:C[^MLCz]*){8}z")  # as matplotlib draws it
PNG = "data:image/png;base64,"


def compact(svg: str, name: str) -> str:
    """The same drawing in fewer bytes, which depend on the text alone; its ids depend on `name`."""
    root = ElementTree.fromstring(svg)
    root.set("font-family", FONTS)
    _without_groups(root)
    _without_clips(root)
    _shared(root)
    _shared_pictures(root)
    _dots(root)
    for path in root.iter(f"{SVG}path"):
        _shorten(path)
    _words_last(root)
    _joined(root)
    for element in root.iter():
        for axis in ("x", "y"):
            if axis in element.attrib:
                element.set(axis, f"{round(float(element.attrib[axis]), 1):g}")
        if "style" in element.attrib:
            style = re.sub(r"\s*([:;])\s*", r"\1", element.attrib["style"])
            element.set("style", style.replace("stroke-dashoffset:0;", ""))
        if (target := element.attrib.pop(f"{LINK}href", None)) is not None:
            element.set("href", target)
        element.tail = None
        if element.tag != f"{SVG}text":
            element.text = None
    _inherited(root)
    _together(root)
    for prefix, address in NAMESPACES.items():
        ElementTree.register_namespace(prefix, address)
    return _with_short_ids(ElementTree.tostring(root, encoding="unicode").replace(" />", "/>"), name)


def _without_groups(parent: Element) -> None:
    """Groups that say nothing give their place to what is in them."""
    children: list[Element] = []
    for child in list(parent):
        _without_groups(child)
        if child.tag in (f"{SVG}g", f"{SVG}defs") and not len(child):
            continue
        children += list(child) if child.tag == f"{SVG}g" and not child.attrib else [child]
    parent[:] = children


def _without_clips(root: Element) -> None:
    """What lies inside its frame needs none; frames that are left without use go too."""
    frames = {clip.get("id"): clip for clip in root.iter(f"{SVG}clipPath")}
    for element in root.iter():
        found = CLIP.match(element.get("clip-path", ""))
        frame = None if found is None else frames[found[1]].find(f"{SVG}rect")
        if frame is None or (points := _places(element)) is None:
            continue
        left, top, width, height = (float(frame.get(name, 0)) for name in ("x", "y", "width", "height"))
        low, high = np.array([left, top]) - 0.1, np.array([left + width, top + height]) + 0.1
        if len(points) and (points >= low).all() and (points <= high).all():
            del element.attrib["clip-path"]
    for parent in list(root.iter()):  # a frame around what it cuts: its path can then have a scale of its own
        for at, path in enumerate(parent):
            if path.tag == f"{SVG}path" and "clip-path" in path.attrib:
                parent[at] = Element(f"{SVG}g", {"clip-path": path.attrib.pop("clip-path")})
                parent[at].append(path)
    used = {name for element in root.iter() for name in CLIP.findall(element.get("clip-path", ""))}
    for parent in list(root.iter()):
        parent[:] = [c for c in parent if c.tag != f"{SVG}clipPath" or c.get("id") in used]
    _without_groups(root)


def _places(element: Element) -> Points | None:
    """The points of a straight path, or of the marks of a group; None where they are not known."""
    if element.tag == f"{SVG}path" and "transform" not in element.attrib:
        data = element.get("d", "")
        return None if re.search("[CQ]", data) else _numbers(data)
    if element.tag == f"{SVG}g" and [child.tag for child in element] == [f"{SVG}image"]:
        wide, high, left, top = _matrix(element[0])
        right, bottom = left + wide * float(element[0].get("width", 0)), top + high * float(element[0].get("height", 0))
        return np.array([[left, top], [right, bottom]])
    if element.tag == f"{SVG}g" and all(child.tag == f"{SVG}use" for child in element):
        # Marks have a width of their own, as lines do: a frame cuts neither where its middle is inside.
        return np.array([[float(child.get("x", 0)), float(child.get("y", 0))] for child in element])
    return None


def _numbers(data: str) -> Points:
    return np.array(re.findall(r"-?[\d.]+(?:e-?\d+)?", data), np.float64).reshape(-1, 2)


def _shorten(path: Element) -> None:
    """A path of straight lines in whole tenths of a point, without points that lie on the way."""
    data = path.get("d", "")
    if re.search("[CQ]", data):
        return
    if data.count("L") < FEW or {*path.attrib} - {"d", "style", "id"}:
        path.set("d", _rounded(data))
        return
    shown, at = "", np.zeros(2)
    for line in re.findall("M[^M]*", data):
        points = simplify(np.round(_numbers(line) * 10), TOLERANCE)
        steps = [step for step in np.diff(points, axis=0) if step.any()]
        # The first move is from the corner, so that the path may follow another one (`_joined`).
        shown += f"{'m' if shown else 'M'}{_pairs([points[0] - at])}" + (f"l{_pairs(steps)}" if steps else "")
        shown, at = (f"{shown}z", points[0]) if line.endswith("z") else (shown, points[-1])
    path.set("d", shown)
    path.set("transform", "scale(.1)")
    style = _style(path)
    for length in ("stroke-width", "stroke-dasharray", "stroke-dashoffset"):
        if length in style:
            style[length] = re.sub(r"[\d.]+", lambda found: f"{10 * float(found[0]):g}", style[length])
    path.set("style", _style_text(style))


def _rounded(data: str) -> str:
    """A short path in tenths of a point, with level and upright lines named by their end."""
    shown, before = "", ("", "")
    for letter, numbers in re.findall("([A-Za-z])([^A-Za-z]*)", data):
        if letter not in "ML":
            shown += letter + numbers
            continue
        x, y = (f"{round(float(number), 1) + 0:g}" for number in numbers.split())
        if letter == "L" and x == before[0]:
            shown += f"V{y}"
        elif letter == "L" and y == before[1]:
            shown += f"H{x}"
        else:
            shown += f"{letter}{x} {y}"
        before = x, y
    return shown


def _pairs(steps: list[Points]) -> str:
    numbers = (f"{value:.0f}" for step in steps for value in step)
    return "".join(text if text.startswith("-") else f" {text}" for text in numbers).removeprefix(" ")


def simplify(points: Points, tolerance: float) -> Points:
    """The points without those that the line through the others misses by no more than this (Douglas, Peucker)."""
    kept = np.zeros(len(points), bool)
    kept[[0, -1]] = True
    spans = [(0, len(points) - 1)]
    while spans:
        first, last = spans.pop()
        if last - first < 2:
            continue
        way, between = points[last] - points[first], points[first + 1 : last] - points[first]
        share = np.clip(between @ way / max(1e-9, way @ way), 0, 1)
        away = np.hypot(*(between - share[:, None] * way).T)
        farthest = int(away.argmax())
        if away[farthest] > tolerance:
            middle = first + 1 + farthest
            kept[middle] = True
            spans += [(first, middle), (middle, last)]
    return points[kept]


def _words_last(root: Element) -> None:
    """All words in one group, which has the size and colour that most of them have."""
    words = [child for child in root if child.tag == f"{SVG}text"]
    if not words:
        return
    root[:] = [child for child in root if child.tag != f"{SVG}text"]
    styles = [_style(word) for word in words]
    group = ElementTree.SubElement(root, f"{SVG}g")
    shared = {}
    for name in ("font-size", "fill"):
        values = [style.get(name, "") for style in styles]
        shared[name] = max(sorted(set(values)), key=values.count)
    group.set("style", _style_text({name: value for name, value in shared.items() if value}))
    for word, style in zip(words, styles, strict=True):
        own = {name: value for name, value in style.items() if shared.get(name) != value}
        anchor = own.pop("text-anchor", "")
        word.attrib.pop("style", None)
        if own:
            word.set("style", _style_text(own))
        if anchor not in ("", "start"):
            word.set("text-anchor", anchor)
        if turned := word.get("transform"):
            word.set("transform", re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", turned))
    words.sort(key=_anchor)
    for anchor, members in groupby(words, key=_anchor):
        place = ElementTree.SubElement(group, f"{SVG}g", {"text-anchor": anchor}) if anchor else group
        place.extend(members)
    for word in words:
        word.attrib.pop("text-anchor", None)


def _anchor(word: Element) -> str:
    return word.get("text-anchor", "")


def _style(element: Element) -> dict[str, str]:
    parts = (part.partition(":") for part in element.get("style", "").split(";") if part.strip())
    return {name.strip(): value.strip() for name, _, value in parts}


def _style_text(style: dict[str, str]) -> str:
    return ";".join(f"{name}:{value}" for name, value in style.items())


def _shared(root: Element) -> None:
    """A long path that is drawn again elsewhere is named and used there: surfaces are often equal."""
    known: dict[tuple[str, int], list[tuple[Element, Points]]] = {}
    numbers = count()
    for parent in list(root.iter()):
        for at, path in enumerate(parent):
            data = path.get("d", "")
            if path.tag != f"{SVG}path" or {*path.attrib} - {"d", "style"} or "C" in data or data.count("L") < FEW:
                continue
            points = _numbers(data)
            alike = known.setdefault((path.get("style", ""), len(points)), [])
            for origin, others in alike:
                away = points[0] - others[0]
                if np.abs(points - others - away).max() < SAME:
                    origin.set("id", origin.get("id") or f"shared{next(numbers)}")
                    place = {f"{LINK}href": f"#{origin.get('id')}", "x": str(away[0]), "y": str(away[1])}
                    parent[at] = Element(f"{SVG}use", place)
                    break
            else:
                alike.append((path, points))


def _dots(root: Element) -> None:
    """A round mark as a line without length and with round ends, which takes half of the bytes."""
    sizes = {}
    for mark in root.iter(f"{SVG}path"):
        if (found := DOT.fullmatch(mark.get("d", ""))) and "id" in mark.attrib and "style" not in mark.attrib:
            sizes[mark.get("id")] = 2 * float(found[1])
    for parent in list(root.iter()):
        for at, mark in enumerate(parent):
            name, style = mark.get(f"{LINK}href", "").removeprefix("#"), _style(mark)
            if mark.tag != f"{SVG}use" or name not in sizes or {*style} - {"fill", "fill-opacity"}:
                continue
            look = {"stroke": style.get("fill", "#000"), "stroke-width": f"{sizes[name]:g}", "stroke-linecap": "round"}
            look |= {"stroke-opacity": style["fill-opacity"]} if "fill-opacity" in style else {}
            x, y = (f"{round(float(mark.get(axis, 0)), 1):g}" for axis in "xy")
            parent[at] = Element(f"{SVG}path", {"d": f"M{x} {y}h0", "style": _style_text({"fill": "none", **look})})
    used = {element.get(f"{LINK}href", "").removeprefix("#") for element in root.iter(f"{SVG}use")}
    for parent in list(root.iter()):
        parent[:] = [child for child in parent if child.get("id") not in {*sizes} - used]
    _without_groups(root)


def _shared_pictures(root: Element) -> None:
    """Each picture once, in as few bytes as hold it: where it is drawn again it is used."""
    known: dict[tuple[str | None, ...], Element] = {}
    for parent in list(root.iter()):
        for at, picture in enumerate(parent):
            if picture.tag != f"{SVG}image":
                continue
            wide, high, left, top = _matrix(picture)
            looks = (picture.get(f"{LINK}href"), picture.get("width"), f"{wide} {high}", picture.get("style"))
            if (origin := known.setdefault(looks, picture)) is picture:
                continue
            origin.set("id", origin.get("id") or f"picture{len(known)}")
            _, _, x, y = _matrix(origin)
            place = {f"{LINK}href": f"#{origin.get('id')}", "x": str(left - x), "y": str(top - y)}
            parent[at] = Element(f"{SVG}use", place)
    for picture in known.values():
        _repack(picture)


def _matrix(picture: Element) -> tuple[float, float, float, float]:
    """How far a picture is stretched to the right and down, and where it is."""
    found = MATRIX.fullmatch(picture.get("transform", ""))
    if found is None:
        return 1.0, 1.0, float(picture.get("x", 0)), float(picture.get("y", 0))
    wide, high, left, top = map(float, found.groups())
    return wide, high, left, top


def _repack(picture: Element) -> None:
    """Without what its pixels need not say each: that they are opaque, and that they are grey."""
    data = picture.get(f"{LINK}href", "").removeprefix(PNG)
    pixels = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))
    colours = pixels[..., :3]
    if pixels[..., 3].min() < 255:
        return
    is_grey = (colours == colours[..., :1]).all()
    out = io.BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(colours[..., 0] if is_grey else colours)).save(out, "PNG", optimize=True)
    picture.set(f"{LINK}href", PNG + base64.b64encode(out.getvalue()).decode())


def _joined(root: Element) -> None:
    """Lines of one look that follow one another become one path, such as those of a grid."""
    for parent in list(root.iter()):
        children: list[Element] = []
        for child in parent:
            before = children[-1] if children else None
            if before is not None and _is_line(child) and _look(child) == _look(before):
                before.set("d", before.get("d", "") + child.get("d", ""))
            else:
                children.append(child)
        parent[:] = children


def _is_line(element: Element) -> bool:
    """Is it drawn with a pen alone, and whole: would it look the same as a part of another path?"""
    style = _style(element)
    return element.tag == f"{SVG}path" and style.get("fill") == "none" and not {"opacity", "stroke-opacity"} & {*style}


def _look(element: Element) -> tuple[str, list[tuple[str, str]]]:
    return element.tag, sorted((name, value) for name, value in element.attrib.items() if name != "d")


def _inherited(root: Element) -> None:
    """What most lines say is said once for all: that they are not filled, and that their ends are square."""
    root.set("fill", "none")
    root.set("stroke-linecap", "square")
    for element in root.iter():
        style = _style(element)
        if style.get("fill") == "none":
            del style["fill"]
        if "stroke" in style and style.setdefault("stroke-linecap", "butt") == "square":
            del style["stroke-linecap"]
        if "style" in element.attrib:
            element.set("style", _style_text(style))
            if not style:
                del element.attrib["style"]


def _together(root: Element) -> None:
    """Neighbours of one style share it: marks, and lines that must stay apart."""
    for parent in list(root.iter()):
        if parent.tag in (f"{SVG}defs", f"{SVG}text"):
            continue
        children: list[Element] = []
        for style, members in groupby(parent, key=_own_style):
            run = list(members)
            if style and len(run) > 1:
                if len(run) == len(parent) and parent is not root and "style" not in parent.attrib:
                    group = parent
                    children += run
                else:
                    group = Element(f"{SVG}g")
                    group.extend(run)
                    children.append(group)
                group.set("style", style)
                for child in run:
                    del child.attrib["style"]
            else:
                children += run
        parent[:] = children


def _own_style(element: Element) -> str:
    """What may become the style of a group; what is used elsewhere keeps its own."""
    return "" if element.tag in (f"{SVG}path", f"{SVG}image") and "id" in element.attrib else element.get("style", "")


def _with_short_ids(svg: str, name: str) -> str:
    """Ids that no other figure of a page has, though a mark is named hundreds of times."""
    ids = dict.fromkeys(re.findall(r'\bid="([^"]*)"', svg))
    prefix = f"f{zlib.crc32(name.encode()) % 16**5:x}-"
    short = {long: f"{prefix}{number}" for number, long in enumerate(ids, 1)}
    return re.sub(r'(\bid="|url\(#|href="#)([^")]*)', lambda found: found[1] + short.get(found[2], found[2]), svg)
