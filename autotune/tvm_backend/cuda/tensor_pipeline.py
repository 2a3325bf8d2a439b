"""Write the pipeline of tensor cores into kernels whose schedule asks for it.

The schedule (`search/pipeline_sketch.py`) says which tile of results a block computes and by how many threads, and what
follows on them. It marks two blocks: the one that computes the tile in shared memory, and those that take results from
there. As they stand they compute what they should, slowly. Here calls of `pipeline.cuh` take their place. It has the
loops, and `pipeline_code.py` says where the elements of the operands lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import sym, tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import IRModule as Module
from tvm.ir import Range, TensorRegion
from tvm.s_tir import MatchBufferRegion, SBlock, SBlockRealize

from autotune.tvm_backend.cuda.pipeline_code import source_of, source_of_results
from autotune.tvm_backend.cuda.pipeline_tiles import INSTRUCTION, MAX_SUMS, PREFIX, Tiles
from autotune.tvm_backend.cuda.products import PIECE, Product, Role, product_of
from autotune.tvm_backend.programs import replaced, with_body
from autotune.tvm_backend.types import Block, Buffer, IRModule, Loop, PrimExpr, PrimFunc, Stmt

RESULTS = f"{PREFIX}results"  # the annotation of a block that takes results: how many at a time
SHARED = "shared.dyn"
_MOST_COPIES = 4
_SIDES: tuple[Role, ...] = ("row", "column")
Wanted = Callable[[Block], bool]
Write = Callable[[Any, list[Loop]], Stmt]


def write_pipelines(function: PrimFunc) -> PrimFunc:
    """Return a scheduled program whose marked blocks are calls of the pipeline."""
    for block in _blocks(function.body):
        if _is_product(block):
            function = function.with_body(_Writer(block).of(function.body))
    return function


def fits(module: IRModule, max_shared: int) -> bool:
    """Return whether each pipeline of a scheduled module can be launched.

    Args:
        max_shared: Bytes of shared memory that a launch may give a block.
    """
    return all(tiles.fits(max_shared) and not _spills(product, tiles) for product, tiles in marked(module))


def _spills(product: Product, tiles: Tiles) -> bool:
    """Return whether a thread has too few registers for the addresses and conditions of what it copies.

    ptxas has none left for more copies of an image with a border than `_MOST_COPIES` beside the most sums.
    """
    is_full = tiles.rows * tiles.columns // tiles.threads == MAX_SUMS
    copies = tiles.rows * tiles.steps * INSTRUCTION // PIECE // tiles.threads
    return is_full and product.a.condition is not None and copies > _MOST_COPIES


def marked(module: Module) -> list[tuple[Product, Tiles]]:
    """Return the products of a scheduled module that pipelines compute, and their tiles."""
    functions = [item for item in module.functions.values() if isinstance(item, tirx.PrimFunc)]
    return [_read(block) for item in functions for block in _blocks(item.body) if _is_product(block)]


def _read(block: Block) -> tuple[Product, Tiles]:
    product = product_of(block)
    tiles = Tiles.read(block)
    assert product is not None and tiles is not None, "the block is marked"
    return product, tiles


def _blocks(statement: Stmt) -> list[Block]:
    blocks = list[Block]()
    tvm_ffi.structural_walk(statement, ((SBlock, blocks.append),))
    return blocks


def _is_product(block: Block) -> bool:
    return Tiles.read(block) is not None and product_of(block) is not None


class _Writer:
    """Writes one pipeline into a function.

    Args:
        block: The block that computes a tile.
    """

    def __init__(self, block: Block) -> None:
        self.product, self.tiles = _read(block)
        self.results = block.writes[0].source
        size = self.tiles.shared_bytes()
        self.shared = tirx.decl_buffer((size,), "uint8", f"{self.results.name}_pipeline", scope=SHARED)

    def of(self, statement: Stmt) -> Stmt:
        """Return the body of the function."""
        root = statement.block
        buffers = [*(item for item in root.alloc_buffers if not item.same_as(self.results)), self.shared]
        body = _placed(root.body, self._computes, self._call_of_product)
        body = _placed(body, self._takes, self._call_of_results)
        variables = (root.iter_vars, root.reads, root.writes, root.name_hint)
        block = SBlock(*variables, body, root.init, buffers, root.match_buffers, root.annotations)
        return SBlockRealize(statement.iter_values, statement.predicate, block)

    def _computes(self, block: Block) -> bool:
        return Tiles.read(block) is not None and block.writes[0].source.same_as(self.results)

    def _takes(self, block: Block) -> bool:
        return RESULTS in block.annotations and block.reads[0].source.same_as(self.results)

    def _call_of_product(self, realized: Any, loops: list[Loop]) -> Stmt:
        """The call that computes a tile, by all threads of a block."""
        product, _ = _read(realized.block)
        values = _values(realized, loops)
        places = [values[product.variables[role]] for role in _SIDES]
        for place, size in zip(places, (self.tiles.rows, self.tiles.columns), strict=True):
            _check_begin(place, size)
        batch = values[product.variables["batch"]] if "batch" in product.variables else 0
        tensors = [product.a.tensor, product.b.tensor]
        name, code = source_of(product, self.tiles)
        pointers = [self.shared.access_ptr("rw"), *(item.access_ptr("r") for item in tensors)]
        call = tirx.Evaluate(cuda_func_call(name, *pointers, batch, *places, source_code=code))
        reads = [_whole(item) for item in tensors]
        dtype = str(loops[0].loop_var.ty.dtype)
        return self._by_all(SBlock([], reads, [_whole(self.shared)], "pipeline", call), dtype)

    def _by_all(self, block: SBlock, dtype: str) -> Stmt:
        """A block that each thread executes. TVM gives all loops over threads the type of the first one."""
        binding = tirx.IterVar(None, tirx.Var("threadIdx.x", dtype), 1, "threadIdx.x")
        begin, threads = (tirx.IntImm(dtype, value) for value in (0, self.tiles.threads))
        body = SBlockRealize([], True, block)
        return tirx.For(tirx.Var("thread", dtype), begin, threads, tirx.ForKind.THREAD_BINDING, body, binding)

    def _call_of_results(self, realized: Any, loops: list[Loop]) -> Stmt:
        """The call that takes results which lie together."""
        count = math.prod(int(item.extent) for item in loops)
        values = _values(realized, loops)
        written = realized.block.writes[0]
        indices = [_replaced_all(item.min, values) for item in written.region]
        sizes = [1] * (len(indices) - 1) + [count]
        ranges = [_range(index, size) for index, size in zip(indices, sizes, strict=True)]
        region = _region(written.source, ranges)
        scope = written.source.scope()
        taken = tirx.decl_buffer((count,), written.source.dtype, "taken", scope=scope, offset_factor=1)
        pointers = [taken.access_ptr("w"), self.shared.access_ptr("r")]
        places = [indices[-2] % self.tiles.rows, indices[-1] % self.tiles.columns]
        name, code = source_of_results(self.tiles, count, self.product.element.sums)
        call = tirx.Evaluate(cuda_func_call(name, *pointers, *places, source_code=code))
        matches = [MatchBufferRegion(taken, region)]
        block = SBlock([], [_whole(self.shared)], [region], "results", call, match_buffers=matches)
        (condition,) = _at_beginning([realized.predicate], loops)
        return SBlockRealize([], condition, block)


def _placed(statement: Stmt, wanted: Wanted, write: Write) -> Stmt:
    """Return a statement with another one in place of the part of a sequence that has wanted blocks only."""
    if not any(map(wanted, _blocks(statement))):
        return statement
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_part(item, wanted, write) for item in statement.seq])
    if isinstance(statement, tirx.For):
        return with_body(statement, _placed(statement.body, wanted, write))
    raise ValueError(f"a pipeline lies in {type(statement).__name__}, where nothing follows it")


def _part(statement: Stmt, wanted: Wanted, write: Write) -> Stmt:
    if all(map(wanted, _blocks(statement))):
        return write(*_innermost(statement))
    return _placed(statement, wanted, write)


def _check_begin(place: PrimExpr, size: int) -> None:
    """Raise ValueError where a tile does not begin at a multiple of its size."""
    aligned = sym.Analyzer().modular_set(place)
    if aligned.coeff % size or aligned.base % size:
        raise ValueError(f"a tile begins at {place}")


def _region(buffer: Buffer, ranges: list[Range]) -> TensorRegion:
    return TensorRegion(buffer, ranges, buffer.ty)


def _whole(buffer: Buffer) -> TensorRegion:
    return _region(buffer, [_range(tirx.IntImm(str(extent.ty.dtype), 0), int(extent)) for extent in buffer.shape])


def _range(begin: PrimExpr, extent: int) -> Range:
    """A range of numbers of one type: TVM compares its ends."""
    return Range.from_min_extent(begin, tirx.IntImm(str(begin.ty.dtype), extent))


def _innermost(statement: Stmt) -> tuple[Any, list[Loop]]:
    """The last block of a nest, and the loops around it."""
    loops = list[Loop]()
    while not isinstance(statement, SBlockRealize):
        if isinstance(statement, tirx.SeqStmt):
            statement = statement.seq[len(statement.seq) - 1]
        else:
            loops.append(statement)
            statement = statement.body
    return statement, loops


def _values(realized: Any, loops: list[Loop]) -> dict[PrimExpr, PrimExpr]:
    """The values of the variables of a block at the first iteration of loops."""
    begin = _at_beginning(realized.iter_values, loops)
    return {item.var: value for item, value in zip(realized.block.iter_vars, begin, strict=True)}


def _at_beginning(expressions: list[PrimExpr], loops: list[Loop]) -> list[PrimExpr]:
    """Return expressions at the first iteration of loops."""
    first = {item.loop_var: item.min for item in loops}
    return [sym.Analyzer().simplify(_replaced_all(item, first)) for item in expressions]


def _replaced_all(expression: PrimExpr, values: Mapping[PrimExpr, PrimExpr]) -> PrimExpr:
    """Return an expression with values in place of variables."""
    for variable, value in values.items():
        expression = replaced(expression, variable, value)
    return expression
