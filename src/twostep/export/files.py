"""The file: written beside its place, checked under onnxruntime, and put there only if it does what the policy does."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from twostep.errors import ExportError
from twostep.export.deployed import Deployed, Port
from twostep.export.parity import TOLERANCE, Parity, compare
from twostep.policies.actor_critic import ActorCritic
from twostep.store.spaces import space_to_plain

NEEDED = ("onnx", "onnxruntime", "onnxscript")
SUFFIX = ".onnx"


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked."""

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parity: Parity


def export_policy(
    policy: Any,
    path: str | os.PathLike[str],
    *,
    masks: bool = False,
    about: Mapping[str, Any] | None = None,
    inputs: int = 1_000,
    seed: int = 0,
) -> Exported:
    """Write a policy as ONNX: raw observations in, the environment's actions out, memory in and out.

    The file is left only where it agrees with the policy on random sequences; one that was there before is replaced in
    one step.

    >>> exported = export_policy(PolicyStore().policy("run://runs").policy(), "policy.onnx")
    >>> print(exported.parity)

    Args:
        policy: An `ActorCritic`, on any device.
        masks: Whether the file takes masks that say which choices are allowed.
        about: What else the file's metadata say, under `about`: where the policy comes from, say.
        inputs: Observations that are compared, `seed` draws them.

    Raises:
        ExportError: A package is missing, the policy is of another kind, or the file does something else.
    """
    require_packages()
    if type(policy) is not ActorCritic:
        raise ExportError(
            f"{type(policy).__name__} cannot be exported: only an ActorCritic can, whose every operation is known. "
            "Export networks of your own by torch.onnx.export."
        )
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ExportError(f"{path} must end in {SUFFIX}: {path.with_suffix(SUFFIX)}, say.")
    original = _on_cpu(policy)
    deployed = Deployed(original, masks=masks)
    beside = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(deployed, beside, _metadata(policy, deployed, about or {}))
        parity = compare(original, deployed, open_file(beside), inputs=inputs, seed=seed)
        if not parity.holds:
            raise ExportError(
                f"{path} is not written: its {parity.worst} differ from the policy's by up to {parity.difference:.2g}, "
                f"where {TOLERANCE:g} is tolerated. Update onnx, onnxruntime and onnxscript, or report it."
            )
        os.replace(beside, path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}. Choose another place.") from error
    finally:
        beside.unlink(missing_ok=True)
    return Exported(path, deployed.inputs, deployed.outputs, parity)


def require_packages() -> None:
    """Refuse to begin without what writes and runs such files."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ExportError(f"export needs {', '.join(missing)}: pip install 'twostep[export]'.")


def _on_cpu(policy: ActorCritic) -> ActorCritic:
    twin = ActorCritic(policy.observation_space, policy.action_space, policy.config)
    twin.load_state_dict({name: tensor.detach().cpu() for name, tensor in policy.state_dict().items()})
    return twin.eval()


def _write(deployed: Deployed, path: Path, metadata: dict[str, str]) -> None:
    example = tuple(port.example(2) for port in deployed.inputs)
    batch = torch.export.Dim("batch")
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # what the exporter deprecates in itself
            program = torch.onnx.export(
                deployed,
                example,
                input_names=[port.name for port in deployed.inputs],
                output_names=[port.name for port in deployed.outputs],
                dynamic_shapes=(tuple({0: batch} for _ in example),),
                dynamo=True,
                verbose=False,
            )
    finally:
        exporter.setLevel(level)
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(path, external_data=False)


def open_file(path: Path) -> Any:
    """Open a file in one thread on the CPU, where small networks are quickest."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _metadata(policy: ActorCritic, deployed: Deployed, about: Mapping[str, Any]) -> dict[str, str]:
    """Return what the file says about itself: texts, all but the version as JSON."""
    normalized = {path: vector for path, vector in policy.encoder.vectors().items() if vector.normalized}
    facts = {
        "observation_space": space_to_plain(policy.observation_space),
        "action_space": space_to_plain(policy.action_space),
        "inputs": {port.name: _form(port) for port in deployed.inputs},
        "outputs": {port.name: _form(port) for port in deployed.outputs},
        "observations_normalized": {
            path or "obs": {"mean": vector.mean.tolist(), "inverse_std": vector.inverse_std.tolist()}
            for path, vector in normalized.items()
        },
        "action": "the most likely one, squashed, scaled and clipped to the action space",
        "about": {"policy_version": policy.version, **about},
    }
    return {"twostep_version": version("twostep"), **{name: json.dumps(fact) for name, fact in facts.items()}}


def _form(port: Port) -> list[Any]:
    return ["batch", *port.shape, str(port.dtype).removeprefix("torch.")]
