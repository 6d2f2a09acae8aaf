"""What a traced graph does not hold of a module's training, found in two steps of the module alone: gradients that its own code
computes or changes, state outside its tensors, random numbers that are not PyTorch's. Each is named, with its line if it has one.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bricolage.errors import NotFusible
from bricolage.train.fuse.custom_backward import Applied, record_functions
from bricolage.train.step.step import calling_line, users_code

if TYPE_CHECKING:
    import torch

_DEPTH = 4
"""Of lists and objects whose values are looked at."""
_MOST_ITEMS = 1000
_MOST_BYTES = 1 << 20
"""Of an array among globals: larger ones are data."""


def trained_parameters(
    module: torch.nn.Module, loss: Callable[[], torch.Tensor], place: str, random_state: torch.Tensor
) -> frozenset[str]:
    """Names of the parameters that get a gradient.

    Args:
        module: in training mode; its buffers are written to.
        loss: forward and loss on a batch.
        place: what an error calls the module.
        random_state: of the lane, as `torch.get_rng_state` gives it.

    Raises:
        NotFusible: a graph would not hold all of its training.
        BadTrainingCode: the module fails in training.
    """
    import torch

    reason = _hooks(module) or _outside(module)
    if reason:
        raise NotFusible(reason=reason)
    kept = torch.get_rng_state()
    torch.set_rng_state(random_state)
    watch = _watching_hooks()
    try:
        numbers, states = _other_random(), [_state(module, ())]
        for _ in range(2):
            module.zero_grad(set_to_none=True)
            with users_code(place):
                with watch, record_functions() as applied:
                    value = loss()
                reason = watch.found or _functions(value, applied)
                if reason:
                    raise NotFusible(reason=reason)
                value.sum().backward()
            states.append(_state(module, applied.carried))
        if _other_random() != numbers:
            raise NotFusible(reason="it draws random numbers from Python's random or numpy.random in training")
    finally:
        torch.set_rng_state(kept)
    for name, now in states[2].items():
        if states[1].get(name, now) != now:
            raise NotFusible(reason=f"each step of training changes {name}, which is no buffer")
    return frozenset(
        _require_strided(name, parameter) for name, parameter in module.named_parameters() if parameter.grad is not None
    )


def _require_strided(name: str, parameter: torch.Tensor) -> str:
    import torch

    assert parameter.grad is not None
    if parameter.grad.layout != torch.strided:
        raise NotFusible(reason=f"the gradient of {name} is sparse")
    return name


def _hooks(module: torch.nn.Module) -> str:
    """Hooks on gradients of modules and weights."""
    for path, part in module.named_modules():
        for hook in (*part._backward_hooks.values(), *part._backward_pre_hooks.values()):
            return f"module '{path}' has a hook on gradients ({_home(hook)})"
    for name, parameter in module.named_parameters():
        for hook in (
            *(parameter._backward_hooks or {}).values(),
            *(parameter._post_accumulate_grad_hooks or {}).values(),
        ):
            return f"'{name}' has a hook on its gradient ({_home(hook)})"
    return ""


def _outside(module: torch.nn.Module) -> str:
    tensors = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    tensors |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    extra = sorted(set(module.state_dict()) - tensors)
    return f"'{extra[0]}' of its state is neither parameter nor buffer" if extra else ""


def _watching_hooks() -> Any:
    """A mode that notes hooks which the forward pass sets on tensors."""
    from torch.overrides import TorchFunctionMode

    class HookWatch(TorchFunctionMode):
        found = ""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in ("register_hook", "register_post_accumulate_grad_hook"):
                self.found = self.found or f"its forward pass sets a hook on a gradient ({calling_line()})"
            return func(*args, **(kwargs or {}))

    return HookWatch()


def _functions(value: torch.Tensor, applied: Applied) -> str:
    """The first `autograd.Function` that a graph does not carry among what the loss was computed by."""
    from torch.autograd.function import BackwardCFunction

    seen: set[object] = set()
    left: list[Any] = [value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        cls = getattr(node, "_forward_cls", None)
        # Operators that `torch.library` registers are in the graph, with their gradients.
        if isinstance(node, BackwardCFunction) and cls is not None and "GeneratedBackwardFor" not in cls.__name__:
            reason = applied.reason(cls)
            if reason:
                return f"the backward of '{cls.__name__}' is its own ({_home(cls.backward)}), and {reason}"
        left += [parent for parent, _ in node.next_functions]
    return ""


def _home(function: Any) -> str:
    """Where a function stands."""
    try:
        inner = inspect.unwrap(getattr(function, "func", function))
        return f"{inspect.getsourcefile(inner)}, line {inspect.getsourcelines(inner)[1]}"
    except (TypeError, OSError):
        return str(function)


def _other_random() -> tuple[object, ...]:
    """The states of random numbers that are not PyTorch's."""
    numpy = sys.modules.get("numpy")
    theirs = numpy.random.get_state() if numpy is not None else ()
    return random.getstate(), *(state.tobytes() if hasattr(state, "tobytes") else state for state in theirs)


def _state(module: torch.nn.Module, functions: Collection[type]) -> dict[str, object]:
    """What modules hold, except tensors and parts, by name; with what functions with a backward of their own hold, and globals of
    the files that these and those come from."""
    import torch

    module_fields = set(vars(torch.nn.Module()))
    state = {
        f"'{path}.{name}'".replace("'.", "'"): _value(value, _DEPTH)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in module_fields
    }
    for custom_function in functions:
        state |= {
            f"'{custom_function.__name__}.{name}'": _value(value, _DEPTH)
            for name, value in _data(vars(custom_function))
        }
    for home in {function.__module__ for function in (*functions, *map(type, module.modules()))}:
        if home in sys.modules and home.partition(".")[0] != "torch":
            module_globals = vars(sys.modules[home])
            state |= {f"the global '{name}'": _value(value, _DEPTH) for name, value in _data(module_globals)}
    return state


def _data(names: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What may be a state: numbers, words, lists and the like, and arrays that are not large."""
    for name, value in names.items():
        size = getattr(value, "nbytes", None)
        small = isinstance(size, int) and size <= _MOST_BYTES and hasattr(value, "tobytes")
        data = small or isinstance(value, bool | int | float | str | bytes | list | dict | set | tuple | None)
        if data and not name.startswith("__"):
            yield name, value


def _value(value: Any, depth: int) -> object:
    """Something that is equal where the value is; the type alone of what cannot be looked into."""
    import torch

    if isinstance(value, bool | int | str | bytes | None):
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if depth and isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) < _MOST_ITEMS:
        items = sorted(value.items(), key=repr) if isinstance(value, Mapping) else value
        return type(value).__name__, len(value), tuple(_value(element, depth - 1) for element in _order_items(items))
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return type(value).__name__
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return value.tobytes()
    inner = getattr(value, "__dict__", None)
    if depth and isinstance(inner, dict) and not callable(value) and len(inner) < _MOST_ITEMS:
        return type(value).__name__, tuple(
            (name, _value(attribute, depth - 1)) for name, attribute in sorted(inner.items())
        )
    return type(value).__name__


def _order_items(items: Any) -> Iterator[Any]:
    return iter(sorted(items, key=repr) if isinstance(items, set | frozenset) else items)
