"""The choice between gloo and NCCL follows the machine, and is explained."""

from __future__ import annotations

import os
import stat

import pytest

from allreduce_edu.realdist import backend


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with as many GPUs as told: an nvidia-smi that lists them."""

    def with_gpus(count, torch_has_cuda=True):
        program = tmp_path / "nvidia-smi"
        listed = "\n".join(f"echo 'GPU {i}: NVIDIA H100 (UUID: GPU-{i})'" for i in range(count))
        program.write_text(f"#!/bin/sh\n{listed}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(backend, "torch_has_cuda", lambda: torch_has_cuda)

    return with_gpus


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")
class TestChoice:
    def test_a_gpu_for_each_rank_means_nccl(self, machine):
        machine(2)
        assert backend.choose(2) == ("nccl", "NCCL, because there is a GPU for every rank.")

    def test_more_ranks_than_gpus_mean_gloo(self, machine):
        machine(2)
        name, why = backend.choose(4)
        assert name == "gloo"
        assert why == "gloo, because NCCL wants one GPU for each rank, and there are 2 for 4 ranks."

    def test_hidden_gpus_do_not_count(self, machine, monkeypatch):
        machine(4)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert backend.choose(2)[0] == "gloo"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,-1,2")
        assert backend.gpus() == 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert backend.gpus() == 0

    def test_a_torch_without_cuda_means_gloo(self, machine):
        machine(2, torch_has_cuda=False)
        assert backend.choose(2) == ("gloo", "gloo, because this torch was built without CUDA.")

    def test_gloo_can_be_asked_for(self, machine):
        machine(8)
        assert backend.choose(2, "gloo") == ("gloo", "gloo, because it was asked for.")

    def test_nccl_without_gpus_is_refused_at_once(self, machine):
        machine(0)
        with pytest.raises(ValueError, match="no NVIDIA GPU was found; use"):
            backend.choose(2, "nccl")


def test_an_unknown_backend_is_named_with_its_neighbour():
    with pytest.raises(ValueError, match="unknown backend 'nclc'; did you mean 'nccl'"):
        backend.choose(2, "nclc")


def test_the_answer_about_cuda_is_torchs_own():
    torch = pytest.importorskip("torch", reason="asks torch itself")
    assert backend.torch_has_cuda() == (torch.version.cuda is not None)
