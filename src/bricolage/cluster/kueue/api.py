"""Kueue's API by the `kubernetes` package: lists, watches, and server-side apply of statuses with a field manager of our own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import MappingProxyType

from bricolage.cluster.kueue.admission_check import CheckVerdict
from bricolage.cluster.kueue.objects import Resource
from bricolage.errors import KueueMissing, KueueUnavailable

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1", "v1")
"""That are understood, best first."""
MANAGER = "bricolage"
_APPLY = "application/apply-patch+yaml"


class Conflict(Exception):
    """A resource has changed since it was read."""


class Expired(Exception):
    """A watch began too long ago: what it has missed is gone, and has to be listed anew."""


class _Absent(Exception):
    """The cluster has no such version."""


class KueueClient:
    """Speaks to the cluster that a kubeconfig names, or to the one that this process runs in.

    Raises, in each method:
        KueueUnavailable: the API does not answer, or refuses.

    Args:
        context: of the kubeconfig; empty: its current one, or the cluster around.
        host: address of an API server without credentials; for tests.
        timeout_s: of each request but a watch.
    """

    def __init__(self, context: str = "", host: str = "", timeout_s: float = 30.0) -> None:
        try:
            import kubernetes
        except ImportError as error:
            raise KueueMissing(reason=str(error).rstrip(".")) from error
        self._kubernetes = kubernetes
        self._timeout = timeout_s
        configuration = kubernetes.client.Configuration()
        if host:
            configuration.host = host
        else:
            try:
                self._load(configuration, context)
            except kubernetes.config.ConfigException as error:
                raise KueueUnavailable(what="a cluster", reason=str(error).rstrip(".")) from error
        configuration.retries = False
        self.api = kubernetes.client.ApiClient(configuration)
        self.objects = kubernetes.client.CustomObjectsApi(self.api)
        self.version = ""

    def _load(self, configuration: object, context: str) -> None:
        config = self._kubernetes.config
        if not context:
            try:
                config.load_incluster_config(client_configuration=configuration)
                return
            except config.ConfigException:
                pass
        config.load_kube_config(context=context or None, client_configuration=configuration)

    def connect(self) -> str:
        """The version of Kueue's API that is spoken.

        Raises:
            KueueUnavailable: the cluster has none that is known.
        """
        self.version = VERSIONS[0]
        there = []
        for version in VERSIONS:
            with suppress(_Absent), self._asking(f"/apis/{GROUP}/{version}", {404: _Absent}):
                self.objects.get_api_resources(GROUP, version, _request_timeout=self._timeout)
                there.append(version)
                break
        if not there:
            raise KueueUnavailable(what=f"/apis/{GROUP}", reason=f"it serves none of {', '.join(VERSIONS)}")
        self.version = there[0]
        return self.version

    def listed(self, plural: str) -> tuple[list[Resource], str]:
        """All resources of a kind, and the version from which to watch."""
        with self._asking(plural):
            listed = self.objects.list_cluster_custom_object(
                GROUP, self.version, plural, _request_timeout=self._timeout
            )
        version = (listed.get("metadata") or {}).get("resourceVersion", "")
        return list(listed.get("items") or ()), str(version)

    def watched(self, plural: str, since: str, seconds: float) -> Iterator[tuple[str, Resource]]:
        """(ADDED, MODIFIED or DELETED, resource) as they come, for some seconds.

        Raises:
            Expired: `since` is too old.
        """
        watch = self._kubernetes.watch.Watch()
        try:
            with self._asking(f"a watch of {plural}", {410: Expired}):
                for event in watch.stream(
                    self.objects.list_cluster_custom_object, GROUP, self.version, plural,
                    resource_version=since, timeout_seconds=max(int(seconds), 1),
                    _request_timeout=(self._timeout, seconds + self._timeout),
                ):  # fmt: skip
                    yield str(event["type"]), event["raw_object"]
        finally:
            watch.stop()

    def decide(self, verdict: CheckVerdict) -> None:
        """Writes our entry of a workload's checks, and nothing else of it.

        Raises:
            Conflict: it has changed since it was read, or is gone.
        """
        workload = verdict.workload
        entry = {
            "name": verdict.check,
            "state": verdict.state,
            "message": verdict.message,
            "lastTransitionTime": _now(),
        }
        body = {
            "apiVersion": f"{GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": {"name": workload.name, "namespace": workload.namespace, "resourceVersion": workload.version},
            "status": {"admissionChecks": [entry]},
        }
        with self._asking(f"workload {workload.key}", {404: Conflict, 409: Conflict}):
            self.objects.patch_namespaced_custom_object_status(
                GROUP, self.version, workload.namespace, "workloads", workload.name, body, field_manager=MANAGER, force=True,
                _content_type=_APPLY, _request_timeout=self._timeout,
            )  # fmt: skip

    def activate(self, check: Resource) -> None:
        """Says of an admission check that its controller is there: Kueue lets no workload wait for one that is not."""
        name = check["metadata"]["name"]
        condition = {
            "type": "Active", "status": "True", "reason": "Active", "message": "bricolage decides", "lastTransitionTime": _now(),
            "observedGeneration": check["metadata"].get("generation", 1),
        }  # fmt: skip
        body = {
            "apiVersion": f"{GROUP}/{self.version}",
            "kind": "AdmissionCheck",
            "metadata": {"name": name},
            "status": {"conditions": [condition]},
        }
        with self._asking(f"admission check {name}"):
            self.objects.patch_cluster_custom_object_status(
                GROUP, self.version, "admissionchecks", name, body, field_manager=MANAGER, force=True,
                _content_type=_APPLY, _request_timeout=self._timeout,
            )  # fmt: skip

    @staticmethod
    @contextmanager
    def _asking(what: str, known: Mapping[int, type[Exception]] = MappingProxyType({})) -> Iterator[None]:
        """What the API refuses becomes one of the errors that are `known` by status, else says that it cannot be used."""
        try:
            yield
        except Exception as error:  # of the client, of its connection, of what reads its answers
            status, reason = getattr(error, "status", None), getattr(error, "reason", None)
            if isinstance(status, int) and status in known:
                raise known[status] from error
            words = f"{status} {reason}" if status else f"{type(error).__name__}: {error}"
            raise KueueUnavailable(what=what, reason=words) from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
