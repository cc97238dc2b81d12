"""The documents of one process: loaded once before the warm-up request, published once after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels.errors import PlanDocumentError, SettingsError
from kernels.plans import document, flashinfer, log, store
from kernels.plans.cache import PlanCache
from kernels.plans.key import PlanKey
from kernels.plans.metadata import Metadata
from kernels.plans.settings import Settings, native_path
from kernels.tactics import TacticSet

__all__ = ["Documents", "Loaded"]


@dataclass(frozen=True)
class Loaded:
    """How many plans each document gave (those the cache did not have yet), and whether the native one was refused."""

    flashinfer: int = 0
    native: int = 0
    rejected: int = 0

    @property
    def plans(self) -> int:
        return self.flashinfer + self.native


class Documents:
    """Reads and writes the plan documents that the settings name, and keeps the mode they are in.

    Modes: not-prepared, disabled, read-only, read-write, read-only-native-rejected, read-write-native-rejected,
    read-write-save-failed. `parsed` counts documents parsed, refused ones too. The constructor raises SettingsError
    where no document could ever serve: read-only without a source, or a FlashInfer path on a backend without a
    FlashInfer environment.
    """

    def __init__(
        self,
        settings: Settings,
        metadata: Metadata,
        tactics: TacticSet,
        log_line: Callable[[str], None],
        *,
        env: Mapping[str, str],
        environment: flashinfer.Environment | None,
        plan_fields: Callable[[PlanKey], Mapping[str, Any]] | None = None,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._tactics = tactics
        self._log = log_line
        self._environment = environment
        self._plan_fields = plan_fields
        self._target = native_path(settings, metadata, env)
        self.mode = "not-prepared"
        self.parsed = 0
        if self.flashinfer_path is not None and environment is None:
            raise SettingsError(
                "no-flashinfer-environment",
                f"VT_FP4_FLASHINFER_CACHE_PATH={self.flashinfer_path!r} but this backend ({tactics.runner}) has no "
                "FlashInfer environment to check the document against; unset the variable",
            )

    @property
    def native_path(self) -> Path | None:
        return self._target.path

    @property
    def flashinfer_path(self) -> str | None:
        return self._settings.flashinfer_cache_path

    def load(self, cache: PlanCache) -> Loaded:
        """Fill `cache`, FlashInfer first, each plan only where there is none.

        PlanDocumentError for any fault of the FlashInfer document, and for a faulty native one where a read-only
        process has nothing else. Otherwise a faulty native document is named in the log and left alone.
        """
        if self._target.path is None and self.flashinfer_path is None:
            self.mode = "disabled"
            if self._settings.persistent:
                self._log(log.process_local_line(str(self._target.reason)))
            return Loaded()
        self.mode = "read-only" if self._settings.read_only else "read-write"
        if self._target.path is None and not self._settings.read_only:
            self._log(log.process_local_line(str(self._target.reason)))
        # Both are validated before either is installed: a refused document leaves the cache as it was.
        imported = self._read_flashinfer()
        native, rejected = self._read_native_or_reject()
        return Loaded(cache.install(imported), cache.install(native), rejected)

    def save(self, cache: PlanCache) -> int:
        """Merge the ready plans with what the native document holds by now and publish; the number of plans in it.

        0 where nothing may be written, so never beside the plans of a document that was rejected. A failure, such as a
        document that has become unreadable since, is one log line and the mode read-write-save-failed.
        """
        path = self._target.path
        if self.mode != "read-write" or path is None:
            return 0
        current = cache.snapshot()
        saved = 0

        def merged(prior: bytes | None) -> bytes:
            nonlocal saved
            whole = self._described(document.merge_document(current, self._parse_native(path, prior)))
            saved = len(whole.plans)
            return document.serialise_document(self._metadata, self._tactics, whole)

        try:
            store.update(path, merged)
        except PlanDocumentError as error:
            self.mode = "read-write-save-failed"
            self._log(log.unpublished_line(path, error.message))
            return 0
        return saved

    def _described(self, whole: document.Document) -> document.Document:
        """With what the backend says of the plans that it tuned itself, in place of what was said of them before."""
        if self._plan_fields is None:
            return whole
        said = {key: fields for key in whole.plans if (fields := self._plan_fields(key))}
        return replace(whole, plan_fields={**whole.plan_fields, **said})

    def _read_flashinfer(self) -> dict[PlanKey, int]:
        path = self.flashinfer_path
        if path is None or self._environment is None:
            return {}
        data = store.read(Path(path))
        if data is None:
            raise PlanDocumentError(
                "absent", f"VT_FP4_FLASHINFER_CACHE_PATH={path!r} does not exist; correct or unset it"
            )
        self.parsed += 1
        plans = flashinfer.parse(data, self._environment, path, self._tactics).plans
        return {document.key_for(self._metadata, *shape): tactic for shape, tactic in plans.items()}

    def _parse_native(self, path: Path, data: bytes | None) -> document.Document:
        if data is None:
            return document.Document({})
        self.parsed += 1
        return document.parse_document(data, self._metadata, self._tactics, str(path))

    def _read_native_or_reject(self) -> tuple[Mapping[PlanKey, int], int]:
        path = self._target.path
        if path is None:
            return {}, 0
        try:
            return self._parse_native(path, store.read(path)).plans, 0
        except PlanDocumentError as error:
            if self._settings.read_only and self.flashinfer_path is None:
                raise
            self.mode += "-native-rejected"
            self._log(log.rejected_line(path, error.message))
            return {}, 1
