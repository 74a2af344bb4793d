"""Makes a recorded program what the kernels take: in place where nobody looks back, and several operations in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from textgen.ops.cpu.instructions import (
    READ,
    Activate,
    Activated,
    ActivateGated,
    AddRows,
    Attend,
    Before,
    Buffer,
    Clamp,
    Embed,
    Gated,
    Instruction,
    Join,
    Multiply,
    Normalize,
    Program,
    Rotate,
    RotateAndWrite,
    Scale,
    View,
    WriteCache,
)
from textgen.ops.cpu.values import NotRecorded

IN_PLACE = (Normalize, Rotate, Clamp, Activate)


def fuse(program: Program) -> Program:
    """The same program. Raises `NotRecorded` for what no kernel can do without a copy."""
    program = _in_place(program)
    instructions = _with_caches(program.instructions)
    pairs: tuple[Callable[[Instruction, Instruction], Instruction | None], ...]
    pairs = (_scaled_embedding, _added_embedding, _added_product, _added_norm, _product_behind)
    for pair in pairs:
        instructions = _paired(instructions, program.result, pair)
    for each in instructions:
        if isinstance(each, Rotate | WriteCache | Join) or (isinstance(each, Clamp) and each.x != each.y):
            raise NotRecorded(f"{type(each).__name__} that no kernel does in place")
    return replace(program, instructions=tuple(instructions))


def _in_place(program: Program) -> Program:
    """Write over what is not read again; what is joined then lies side by side."""
    instructions: list[Instruction | None] = list(program.instructions)
    touching: dict[Buffer, list[int]] = {}
    for index, each in enumerate(program.instructions):
        for _, view in each.operands():
            touching.setdefault(view.buffer, []).append(index)
    kept = {view.buffer for view in (program.result, program.given) if view is not None}

    def later(index: int, at: View) -> bool:
        after = (instructions[other] for other in touching[at.buffer] if other > index)
        return any(view.overlaps(at) for each in after if each is not None for _, view in each.operands())

    def move(buffer: Buffer, at: View) -> None:
        def place(view: View) -> View:
            return at.part(view.first, view.width) if view.buffer is buffer else view

        for index in touching.pop(buffer):
            each = instructions[index]
            instructions[index] = None if each is None else each.moved(place)
            touching[at.buffer].append(index)

    for index in range(len(instructions)):
        current = instructions[index]
        if isinstance(current, Join):
            if current.first.buffer is not current.second.buffer or current.first.end != current.second.first:
                raise NotRecorded("parts joined that lie apart")
            instructions[index] = None
            move(current.y.buffer, current.first.part(0, current.y.width))
        elif isinstance(current, IN_PLACE):
            x, y = current.x, current.y
            alike = x.width == y.width == y.buffer.width and x.buffer.dtype == y.buffer.dtype
            if alike and not kept & {x.buffer, y.buffer} and not later(index, x):
                move(y.buffer, x)
    return replace(program, instructions=tuple(each for each in instructions if each is not None))


def _with_caches(instructions: Sequence[Instruction]) -> list[Instruction]:
    """Rotation and both writes of a layer in one, as they stand before its attention."""
    out: list[Instruction] = []
    for each in instructions:
        if isinstance(each, Attend) and len(out) >= 2:
            key, value = out[-2:]
            if isinstance(key, WriteCache) and isinstance(value, WriteCache) and not key.values and value.values:
                del out[-2:]
                query = each.x
                if not (
                    query.buffer is key.x.buffer is value.x.buffer
                    and query.end == key.x.first
                    and key.x.end == value.x.first
                ):
                    raise NotRecorded("queries, keys and values that lie apart")
                turned = query.part(0, query.width + key.x.width)
                table = None
                if out and isinstance(rotate := out[-1], Rotate) and rotate.x == rotate.y == turned:
                    table = rotate.table
                    out.pop()
                out.append(
                    RotateAndWrite(
                        layer=each.layer, heads=each.heads, kv_heads=each.kv_heads, head_dim=each.head_dim,
                        value_dim=each.value_dim, x=query.part(0, turned.width + value.x.width), table=table,
                    )
                )  # fmt: skip
        out.append(each)
    return out


def _paired(
    instructions: Sequence[Instruction],
    result: View,
    join: Callable[[Instruction, Instruction], Instruction | None],
) -> list[Instruction]:
    """Put one instruction for two neighbours where `join` has one, if what it no longer writes is not needed later."""
    last: dict[Buffer, int] = {result.buffer: len(instructions)}
    for index, each in enumerate(instructions):
        for _, view in each.operands():
            last[view.buffer] = max(index, last.get(view.buffer, 0))
    out: list[Instruction] = []
    for index, each in enumerate(instructions):
        both = join(out[-1], each) if out else None
        if both is not None:
            gone = (_written(out[-1]) | _written(each)) - _written(both)
            if all(last[buffer] <= index for buffer in gone):
                out[-1] = both
                continue
        out.append(each)
    return out


def _written(instruction: Instruction) -> set[Buffer]:
    return {view.buffer for use, view in instruction.operands() if use != READ}


def _scaled_embedding(first: Instruction, second: Instruction) -> Instruction | None:
    if isinstance(first, Embed) and isinstance(second, Scale) and second.x == first.y and second.soft_cap is None:
        return replace(first, factor=first.factor * second.factor)
    return None


def _added_embedding(first: Instruction, second: Instruction) -> Instruction | None:
    if isinstance(first, Embed) and isinstance(second, AddRows) and second.y == first.y and second.factor == 1.0:
        return replace(first, y=second.x, add=True)
    return None


def _added_product(first: Instruction, second: Instruction) -> Instruction | None:
    if not isinstance(first, Multiply) or not isinstance(second, AddRows) or first.add:
        return None
    if second.y != first.y or second.factor != 1.0 or second.z is not None or second.x.overlaps(first.x):
        return None
    return replace(first, y=second.x, add=True)


def _added_norm(first: Instruction, second: Instruction) -> Instruction | None:
    if not isinstance(first, AddRows) or not isinstance(second, Normalize) or first.z is not None:
        return None
    if second.x != first.x or second.size != first.x.width:
        return None
    return replace(first, affine=second.affine, z=second.y)


def _product_behind(first: Instruction, second: Instruction) -> Instruction | None:
    """A product of rows that go through a norm or an activation before."""
    if not isinstance(second, Multiply) or second.before is not None:
        return None
    before: Before
    match first:
        case Normalize(x=x, y=y, affine=before, size=size) if size == x.width:
            pass
        case Activate(x=x, y=y, kind=kind):
            before = Activated(kind)
        case ActivateGated(x=x, y=y, kind=gated):
            before = Gated(gated)
        case _:
            return None
    return replace(second, x=x, before=before) if y == second.x and not x.overlaps(second.y) else None
