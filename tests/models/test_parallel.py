"""Two ranks of one model over gloo: each holds half of every layer, and both see the logits of Transformers."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from textgen.models.errors import ModelError
from textgen.models.load import load_model
from textgen.ops import select_ops
from textgen.parallel import Parallel

from .families import TINY
from .tiny import make_model, reference_logits, well_chosen

TOKENS = [3, 14, 15, 92, 6, 5, 35, 89, 79]

RANK = """
import sys
import numpy as np, torch
from pathlib import Path
from torch import distributed
from textgen.models.decoder import PackedBatch
from textgen.models.load import load_model
from textgen.ops import SegmentLayout, select_ops
from textgen.parallel import Parallel
from textgen.shard.cache import allocate_cache

base, rank, tokens = Path(sys.argv[1]), int(sys.argv[2]), [int(token) for token in sys.argv[3].split(",")]
distributed.init_process_group("gloo", init_method=f"file://{base}/meet", rank=rank, world_size=2)
cpu, ops, parallel = torch.device("cpu"), select_ops(), Parallel(rank, 2)
positions, table = np.arange(len(tokens)), np.array([[2, 0, 3]], np.int32)
rows = torch.from_numpy(table[0, positions // 4].astype(np.int64) * 4 + positions % 4)
layout = SegmentLayout(np.array([0]), np.array([0]), np.array([len(tokens)]), table, 4)
for folder in sys.argv[4:]:
    model = load_model(base / folder, torch.float32, cpu, parallel, ops)
    cache = allocate_cache(model.spec, 4, 4, torch.float32, cpu, parallel)
    with torch.inference_mode():
        windows = set(model.spec.windows)
        attention = {window: ops.attention(layout, window, model.embedding.table) for window in windows}
        every = [attention[window] for window in model.spec.windows]
        batch = PackedBatch(torch.tensor(tokens), torch.from_numpy(positions), [rows] * len(every), every)
        logits = model.logits(model.hidden(batch, cache.layers))
    np.save(base / folder / f"logits-{rank}.npy", logits.numpy())
    print(model.layers[0].block.attention.output.weight.values.shape[1], model.head.weight.values.shape[0])
distributed.destroy_process_group()
"""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    # a bias is added once, not per rank
    "biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "vocab_size": 102}),
    "odd-vocabulary": ("LlamaForCausalLM", {"vocab_size": 101}),  # each rank holds the whole head
}
HELD = ["32 51", "32 101"]  # per case: columns of the attention's output weight; rows of the head
SHARED_HEADS: dict[str, dict[str, Any]] = {  # switches of families whose default is one key-value head
    "FalconForCausalLM": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": True},
    "GPTBigCodeForCausalLM": {"multi_query": False},
    "CohereForCausalLM": {"use_qk_norm": True},
    "PhiForCausalLM": {"qk_layernorm": True},
    "StableLmForCausalLM": {"qk_layernorm": True, "use_qkv_bias": True},
}
WHOLE_NORMS = ("Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoeForCausalLM")


def test_two_ranks_equal_transformers(tmp_path: Path) -> None:
    families = {name: (name, SHARED_HEADS.get(name, {})) for name in TINY if name not in WHOLE_NORMS}
    cases = CASES | families
    references = {
        name: make_model(tmp_path / name, architecture, **changes) for name, (architecture, changes) in cases.items()
    }
    tokens = ",".join(map(str, TOKENS))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(rank), tokens, *cases], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for rank in ranks:
        said = [line for line in rank.communicate(timeout=100)[0].splitlines() if not line.startswith("[Gloo]")]
        assert said[: len(CASES)] == HELD
    for name, reference in references.items():
        expected, sure = reference_logits(reference, TOKENS), well_chosen(reference, TOKENS)
        for number in range(2):
            logits = torch.from_numpy(np.load(tmp_path / name / f"logits-{number}.npy"))
            torch.testing.assert_close(
                logits[:sure], expected[:sure], rtol=2e-4, atol=2e-4, msg=partial("{}: {}".format, name)
            )


@pytest.mark.parametrize("architecture", WHOLE_NORMS)
def test_norms_over_all_heads_are_refused(architecture: str, tmp_path: Path) -> None:
    make_model(tmp_path, architecture)
    with pytest.raises(ModelError, match="a norm over all 4 heads cannot be shared by 2 ranks"):
        load_model(tmp_path, torch.float32, torch.device("cpu"), Parallel(0, 2), select_ops())


def test_heads_that_ranks_cannot_share_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, num_key_value_heads=1)
    with pytest.raises(ModelError, match="1 key-value heads cannot be shared by 2 ranks; use another number of shards"):
        load_model(tmp_path, torch.float32, torch.device("cpu"), Parallel(0, 2), select_ops())


def test_one_rank_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert Parallel().all_reduce(x) is x
    assert Parallel().all_gather(x) is x
    assert Parallel(1, 2).share(6, "heads") == slice(3, 6)
