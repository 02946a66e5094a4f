"""A recorded forward in pieces, of which those that repeat are one program.

The compiler's time grows with the number of operations, and most networks without convolutions are one block again and
again. So a graph is cut between such blocks, where the fewest tensors cross, and the compiler sees one of them. A cut
costs a pass over what crosses it, since no kernel reaches over it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
_LEAST = 12  # operations of a block that is worth a program of its own


class Piece(NamedTuple):
    """Operations of a graph that are called as one function."""

    function: Callable[..., Sequence[Tensor]]
    inputs: Sequence[fx.Node]
    outputs: Sequence[fx.Node]


class Blocks(NamedTuple):
    """A stretch of a graph's operations that are one block several times."""

    begin: int
    size: int
    times: int

    def parts(self, body: Sequence[fx.Node]) -> list[Sequence[fx.Node]]:
        ends = [self.begin + self.size * number for number in range(self.times + 1)]
        return [body[slice(*pair)] for pair in pairwise(ends)]


def in_pieces(
    graph: fx.GraphModule, compiled: Callable[[fx.GraphModule, Sequence[fx.Node]], Callable[..., Any]]
) -> Callable[..., list[Tensor]] | None:
    """The graph as a function of its flat inputs, which gives its flat outputs; None where nothing repeats.

    `compiled` makes a function of a piece, and gets the nodes that are its inputs. It is called once for equal blocks.
    """
    nodes = list(graph.graph.nodes)
    operations = [node for node in nodes if node.op == "call_function"]
    results = tree_leaves(nodes[-1].args)
    if any(isinstance(node.target, OpOverload) and node.target._schema.is_mutable for node in operations):
        return None  # it would have to keep its place among those that read what it changes
    # What is read beside the trunk comes last: it differs between blocks that are equal otherwise.
    trunk, wanted = _needed_for(results[:1]), _needed_for(results)
    body = [node for node in operations if node in trunk]
    stretches = list(_stretches(body, wanted, 0, len(body)))
    if not stretches:
        return None
    pieces: list[Piece] = []

    def add(parts: Sequence[Sequence[fx.Node]]) -> None:
        """Parts that are equal, as one function."""
        outputs = sorted({number for part in parts for number in _outputs(part, wanted)})
        function = compiled(_module(parts[0], outputs), _inputs(parts[0]))
        pieces.extend(Piece(function, _inputs(part), [part[number] for number in outputs]) for part in parts)

    end = 0
    for blocks in stretches:
        if blocks.begin > end:
            add([body[end : blocks.begin]])
        add(blocks.parts(body))
        end = blocks.begin + blocks.size * blocks.times
    before = set(body[:end])
    if last := [node for node in operations if node in wanted and node not in before]:
        add([last])
    places = [node for node in nodes if node.op == "placeholder"]
    constants = {node: getattr(graph, str(node.target)) for node in nodes if node.op == "get_attr"}

    def call(*arguments: Tensor) -> list[Tensor]:
        values = {**constants, **dict(zip(places, arguments, strict=True))}
        for piece in pieces:
            made = piece.function(*(values[node] for node in piece.inputs))
            values.update(zip(piece.outputs, made, strict=True))
        return [values[node] for node in results]

    return call


def _needed_for(results: Iterable[fx.Node]) -> set[fx.Node]:
    needed, queue = set(), list(results)
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue += node.all_input_nodes
    return needed


def _stretches(body: Sequence[fx.Node], wanted: set[fx.Node], begin: int, end: int) -> Iterator[Blocks]:
    """Between these ends the blocks that save most operations, and those before and after them, in order."""
    longest = _longest([_token(node) for node in body[begin:end]])
    if longest is None:
        return
    first, last, size = longest[0] + begin, longest[1] + begin, longest[2]
    choices = []
    for at in range(first, min(first + size, last - 2 * size + 1)):
        blocks = Blocks(at, size, (last - at) // size)
        parts = blocks.parts(body)
        if all(_wiring(part) == _wiring(parts[0]) for part in parts):
            crossing = len({number for part in parts for number in _outputs(part, wanted)})
            choices.append((crossing, -blocks.times, blocks))
    if choices:
        blocks = min(choices)[2]
        yield from _stretches(body, wanted, begin, blocks.begin)
        yield blocks
        yield from _stretches(body, wanted, blocks.begin + blocks.size * blocks.times, end)


def _longest(tokens: Sequence[str]) -> tuple[int, int, int] | None:
    """Begin, end and size of the repetition that saves most."""
    best, most = None, 0
    for size in range(_LEAST, len(tokens) // 2 + 1):
        pairs = enumerate(zip(tokens, tokens[size:], strict=False))
        for equal, stretch in groupby(pairs, lambda pair: pair[1][0] == pair[1][1]):
            places = [place for place, _ in stretch]
            if equal and len(places) // size * size > most:
                best, most = (places[0], places[-1] + 1 + size, size), len(places) // size * size
    return best


def _token(node: fx.Node) -> str:
    """An operation, without what it is applied to."""
    return f"{node.target} {_named(node, lambda _: '*')} {_shapes(node)}"


def _wiring(part: Sequence[fx.Node]) -> list[str]:
    """What each operation of a part is applied to: others of it, and inputs of some form."""
    names = {node: f"own {number}" for number, node in enumerate(part)}
    names |= {node: f"{node.op} {number} {_shapes(node)}" for number, node in enumerate(_inputs(part))}
    return [_named(node, names.__getitem__) for node in part]


def _named(node: fx.Node, name: Callable[[fx.Node], str]) -> str:
    return str(tree_map(lambda value: name(value) if isinstance(value, fx.Node) else value, (node.args, node.kwargs)))


def _shapes(node: fx.Node) -> object:
    return tree_map(lambda v: (tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v, node.meta.get("val"))


def _inputs(part: Sequence[fx.Node]) -> list[fx.Node]:
    """What a part is given, in the order of first use."""
    own = set(part)
    return list(dict.fromkeys(value for node in part for value in node.all_input_nodes if value not in own))


def _outputs(part: Sequence[fx.Node], wanted: set[fx.Node]) -> list[int]:
    """Which operations of a part others need."""
    own = set(part)
    return [
        number
        for number, node in enumerate(part)
        if any(user not in own and (user in wanted or user.op == "output") for user in node.users)
    ]


def _module(part: Sequence[fx.Node], outputs: Sequence[int]) -> fx.GraphModule:
    graph = fx.Graph()
    copies = {node: graph.placeholder(f"input_{number}") for number, node in enumerate(_inputs(part))}
    for node in part:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[part[number]] for number in outputs))
    return fx.GraphModule(nn.Module(), graph)
