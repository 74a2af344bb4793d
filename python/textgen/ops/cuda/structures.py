"""The parameters of kernels as they lie in memory: the structures of `csrc/cuda`, which say what each field means."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p


class RmsNorm(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "residual", "sum", "weight", "weight32", "out")),
        *((name, c_int64) for name in ("rows", "inner", "outer_stride", "inner_stride")),
        ("eps", c_float),
    ]


class Activate(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "out")),
        *((name, c_int64) for name in ("rows", "size", "stride")),
        *((name, c_float) for name in ("alpha", "limit")),
    ]


class Head(Structure):
    _fields_ = [
        ("x", c_void_p),
        ("stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("cache", c_void_p),
        ("scales", c_void_p),
        *((name, c_int32) for name in ("heads", "head_dim", "rotated", "reserved")),
    ]


class Rotary(Structure):
    _fields_ = [
        *((name, Head) for name in ("query", "key", "value")),
        *((name, c_void_p) for name in ("cos", "sin", "slots")),
        ("tokens", c_int64),
    ]


class CopyRows(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("from_", "to", "sources", "targets")),
        *((name, c_int64) for name in ("rows", "units")),
    ]


class Attention(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("query", "keys", "values", "key_scales", "value_scales", "out")),
        *((name, c_void_p) for name in ("tables", "work", "slopes", "biases", "sinks", "partial", "state")),
        *((name, c_int64) for name in ("query_stride", "table_stride")),
        *(
            (name, c_int32)
            for name in ("heads", "kv_heads", "tiles", "singles", "tile_tokens", "splits", "tile_splits")
        ),
        *((name, c_int32) for name in ("chunk", "tile_chunk", "window", "distances")),
        *((name, c_float) for name in ("scale", "soft_cap")),
    ]


class Sample(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("logits", "exponent", "top_k", "top_p", "min_p", "u", "token", "normaliser")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("vocab", "reserved")),
    ]


class Shape(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("logits", "out", "bits", "masked", "history", "counts", "slots", "known")),
        *((name, c_void_p) for name in ("prompt", "repetition", "frequency", "presence")),
        *((name, c_int64) for name in ("stride", "history_stride")),
        *((name, c_int32) for name in ("vocab", "words")),
    ]


class GroupedLinear(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "weights", "biases", "out", "ends", "sources")),
        ("x_stride", c_int64),
        *((name, c_int32) for name in ("rows", "inputs", "outputs", "groups", "row_tiles", "column_tiles")),
    ]


class GroupRows(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("chosen", "sources", "places", "ends")),
        *((name, c_int32) for name in ("entries", "share", "groups", "reserved")),
    ]


class WeightedSum(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("y", "places", "shares", "out")),
        *((name, c_int32) for name in ("size", "share")),
    ]


class Route(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "correction", "shares", "chosen")),
        *((name, c_int32) for name in ("tokens", "experts", "top", "groups", "top_groups", "best_two", "normalize")),
        ("scale", c_float),
    ]


class Linear(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "packed", "scales", "zeros", "bias", "out", "partial", "counters")),
        *((name, c_void_p) for name in ("ends", "sources")),
        ("stride", c_int64),
        *((name, c_int32) for name in ("rows", "inputs", "outputs", "splits", "experts")),
    ]
