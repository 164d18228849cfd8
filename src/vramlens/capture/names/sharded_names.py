"""Names of what FSDP, DeepSpeed and Megatron-LM keep beside a model's own parameters."""

from __future__ import annotations

from typing import Any

from vramlens.capture.names.claims import GRADIENT_FORM, Claim
from vramlens.capture.names.live_heap import LiveHeap
from vramlens.ground.live_objects import class_name

_FSDP2_PARTS = {
    "sharded_param": "",
    "_sharded_param_data": "",
    "_sharded_post_forward_param": " (resharded)",
    "_sharded_post_forward_param_data": " (resharded)",
    "_unsharded_param": " (all-gathered)",
    "all_gather_outputs": " (all-gathered)",
    "_unsharded_inner_tensors": " (all-gathered)",
}
_LOW_PRECISION = ("fp16_", "bit16_", "bf16_", "parallel_partitioned_", "lp_param")
_PARAMETERS = ("quant_state", "CB", "SCB", "_mp_param", "_fp_param", "params_in_partition")


class FsdpNames:
    """Names what FSDP keeps: the shard has the parameter's name, the gathered whole says so.

    Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_param_group.py and
    fsdp/_flat_param.py.
    """

    def __init__(
        self,
        heap: LiveHeap,
        module_paths: dict[int, str],
        parameter_names: dict[int, str],
        claim: Claim,
    ) -> None:
        self._heap, self._module_paths = heap, module_paths
        self._parameter_names, self._claim = parameter_names, claim

    def claim_all(self) -> None:
        """Claims the storages of every FSDP object that is alive."""
        live = self._heap.live
        for parameter in live.get("fsdp2", ()):
            self._claim_parameter(self._attributes(parameter))
        for group in live.get("fsdp2_group", ()):
            self._claim_group(self._attributes(group))
        for handle in live.get("fsdp1", ()):
            self._claim_flat_parameter(self._attributes(handle))

    def _attributes(self, owner: Any) -> dict[str, Any]:
        return dict(self._heap.attributes(owner))

    def _claim_parameter(self, parts: dict[str, Any]) -> None:
        info = self._attributes(parts.get("_module_info"))
        module_path = self._module_paths.get(id(info.get("module")), "")
        name = f"{module_path}.{info.get('param_name')}".lstrip(".")
        self._parameter_names.setdefault(id(parts.get("sharded_param")), name)
        for part, suffix in _FSDP2_PARTS.items():
            self._claim_parameters(parts.get(part), name + suffix)
        unreduced = [
            parts.get("unsharded_accumulated_grad"),
            self._heap.gradient(parts.get("_unsharded_param")),
        ]
        self._claim_gradients(unreduced, f"{name} (not yet reduced)")
        self._claim_gradients(self._heap.gradient(parts.get("sharded_param")), name)

    def _claim_group(self, parts: dict[str, Any]) -> None:
        modules = self._heap.edges(parts.get("modules", ()))
        first_module = modules[0][1] if modules else None
        name = self._module_paths.get(id(first_module)) or str(parts.get("_module_fqn") or "model")
        shared = self._attributes(parts.get("comm_ctx"))
        gathered = [parts.get("_all_gather_result"), parts.get("_all_gather_output")]
        self._claim_parameters(gathered, f"{name} (all-gather buffer)")
        # All groups share these: what waits there need not be this group's.
        self._claim_parameters(shared.get("all_gather_state"), "all-gather buffer")
        waiting = [shared.get("reduce_scatter_states"), shared.get("reduce_scatter_state")]
        self._claim_gradients(waiting, "reduce-scatter buffer")
        reduced = [parts.get("_partial_reduce_output"), parts.get("_all_reduce_state")]
        self._claim_gradients(reduced, f"{name} (all-reduce buffer)")

    def _claim_flat_parameter(self, handle: dict[str, Any]) -> None:
        flat = handle.get("flat_param")
        parts = self._attributes(flat)
        place = self._module_paths.get(id(handle.get("_fully_sharded_module")), "model")
        name = f"{place}.(flat parameter of {parts.get('_num_params', '?')})"
        self._parameter_names.setdefault(id(flat), name)
        infos, originals = parts.get("_param_infos") or (), parts.get("_params") or ()
        for info, original in zip(infos, originals, strict=False):
            original_name = f"{self._module_paths.get(id(info[1]), place)}.{info[0]}"
            self._parameter_names.setdefault(id(original), original_name)
        self._claim_parameters(parts.get("_local_shard"), name)
        gathered = [parts.get("_full_param_padded"), parts.get("_full_prec_full_param_padded")]
        self._claim_parameters(gathered, f"{name} (all-gathered)")
        self._claim_parameters(parts.get("_mp_shard"), f"{name} (low-precision shard)")
        self._claim_parameters(flat, name)
        gradients = [
            parts.get("_saved_grad_shard"),
            parts.get("_cpu_grad"),
            self._heap.gradient(flat),
        ]
        self._claim_gradients(gradients, name)

    def _claim_parameters(self, holder: Any, name: str) -> None:
        """Claims a tensor, or all tensors in a container, as parameters of one name."""
        for _, tensor in self._heap.tensors_below(holder, depth=3, objects=False):
            self._claim(tensor, name, "parameter")

    def _claim_gradients(self, holder: Any, name: str) -> None:
        """Claims a tensor, or all tensors in a container, as gradients of one parameter."""
        for _, tensor in self._heap.tensors_below(holder, depth=3, objects=False):
            self._claim(tensor, name, "gradient", GRADIENT_FORM)


def attribute_kind(name: str, otherwise: str) -> str:
    """The kind of tensor that an attribute of a parameter or of a wrapping optimizer holds, by
    its name.

    Sources: Megatron-LM (``main_grad``), DDP mixed precision (``_mp_param``, ``_fp_param``),
    bitsandbytes (``quant_state``, ``CB``, ``SCB``), DeepSpeed runtime/zero/stage3.py,
    stage_1_and_2.py, bf16_optimizer.py (``ds_tensor``, ``bit16_groups_flat``,
    ``averaged_gradients``, ``ipg_buckets``).
    """
    if "grad" in name or "ipg" in name:
        return "gradient"
    if name in _PARAMETERS or name.startswith((*_LOW_PRECISION, "ds_")):
        return "parameter"
    return otherwise


def claim_wrappers(
    heap: LiveHeap,
    optimizer_names: dict[int, str],
    parameter_names: dict[int, str],
    claim: Claim,
) -> list[Any]:
    """Names what wrapping optimizers keep (DeepSpeed, Megatron-LM, apex); returns their own
    copies of parameters.
    """
    masters = []
    for owner in heap.live.get("wrapper", ()):
        attributes = heap.attributes(owner)
        inner = dict(attributes).get("optimizer")
        name = optimizer_names.get(id(inner)) or class_name(type(owner))
        for attribute, holder in attributes:
            kind = attribute_kind(attribute, "optimizer_state")
            for path, tensor in heap.tensors_below(holder):
                subject = f"{name}.{attribute}{path}"
                claim(tensor, subject, kind)
                if kind != "gradient" and id(tensor) not in parameter_names:
                    parameter_names[id(tensor)] = subject
                    masters.append(tensor)
    return masters
