"""The native part. Columns are bytes of 64-bit numbers in the machine's order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

NONE: int
__version__: str

_Gap = tuple[int, int, int, Optional[tuple[int, int]]]
_Tensor = tuple[str, Sequence[int], str, int, str]
_Op = tuple[str, str, Sequence[int], Sequence[int], str, int]

class Problem:
    def __new__(
        cls,
        sizes: bytes,
        lower: bytes,
        upper: bytes,
        *,
        names: Optional[Sequence[str]] = None,
        align: Optional[bytes] = None,
        fixed: Optional[bytes] = None,
        hint: Optional[bytes] = None,
        alias: Optional[bytes] = None,
        tier: Optional[bytes] = None,
        gaps: Sequence[_Gap] = ...,
    ) -> Problem: ...
    @staticmethod
    def from_csv(text: bytes) -> Problem: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def sizes(self) -> bytes: ...
    @property
    def lower(self) -> bytes: ...
    @property
    def upper(self) -> bytes: ...
    @property
    def align(self) -> bytes: ...
    def solve(
        self,
        *,
        capacities: Mapping[int, int],
        time_limit: float,
        threads: int,
        seed: int,
        progress: Optional[Callable[[float, int, int], object]] = None,
        cancel: Optional[Callable[[], object]] = None,
    ) -> Solution: ...
    def violation(self, offsets: bytes, capacity: Optional[int] = None) -> Optional[str]: ...

class Solution:
    @property
    def offsets(self) -> bytes: ...
    @property
    def peak(self) -> int: ...
    @property
    def lower_bound(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def seconds(self) -> float: ...

class Model:
    @staticmethod
    def from_graph(tensors: Sequence[_Tensor], ops: Sequence[_Op]) -> Model: ...
    @staticmethod
    def from_onnx(bytes: bytes, dims: Mapping[str, int]) -> Model: ...
    @staticmethod
    def from_tflite(bytes: bytes) -> Model: ...
    @property
    def tensors(self) -> list[tuple[str, list[int], str, int, str]]: ...
    @property
    def ops(self) -> list[tuple[str, str, list[int], list[int], str, int]]: ...
    def reordered(self, seconds: float) -> Model: ...
    def lowered(
        self, *, align: int, weights: bool, inputs: bool, in_place: bool
    ) -> tuple[Problem, list[Optional[int]]]: ...
    def with_offline_plan(self, offsets: Sequence[int]) -> bytes: ...
