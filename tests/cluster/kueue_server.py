"""A small server of the Kubernetes API that keeps Kueue's resources by their published schema: lists, watches with resource
versions, server-side apply of the status with conflicts, 410 for what is gone. It admits as Kueue does: first quota, in order of
creation, then checks."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

GROUP, GPU = "kueue.x-k8s.io", "nvidia.com/gpu"
KINDS = {
    "workloads": "Workload",
    "clusterqueues": "ClusterQueue",
    "localqueues": "LocalQueue",
    "admissionchecks": "AdmissionCheck",
}
STATES = {"Pending", "Ready", "Retry", "Rejected"}


def date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kueue:
    """The resources, and what Kueue itself does with them."""

    def __init__(self, version: str = "v1beta2") -> None:
        self.version = version
        self.lock = threading.Condition()
        self.number = 100
        self.oldest = 0
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.events: list[tuple[int, str, str, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.refuses: dict[str, int] = {}
        """By method and path's end, a status that is answered once."""

    # --- resources --------------------------------------------------------------------------------------------------

    def put(self, plural: str, name: str, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        with self.lock:
            self.number += 1
            key = (plural, namespace, name)
            kind = "MODIFIED" if key in self.objects else "ADDED"
            meta = {
                "name": name,
                **({"namespace": namespace} if namespace else {}),
                "resourceVersion": str(self.number),
            }
            old = self.objects.get(key, {"metadata": {"creationTimestamp": date(time.time()), "generation": 1}})
            one = {"apiVersion": f"{GROUP}/{self.version}", "kind": KINDS[plural], **body}
            one["metadata"] = {**old["metadata"], **body.get("metadata", {}), **meta}
            self.objects[key] = one
            self.events.append((self.number, plural, kind, copy.deepcopy(one)))
            self.lock.notify_all()
            return one

    def queue(self, name: str, quotas: dict[str, int], check: str) -> None:
        """A ClusterQueue that asks for a check, and a LocalQueue of its name in namespace "team"."""
        flavors = [
            {"name": flavor, "resources": [{"name": GPU, "nominalQuota": str(count)}]}
            for flavor, count in quotas.items()
        ]
        group = {"coveredResources": [GPU], "flavors": flavors}
        old = {"admissionChecks": [check]}
        new = {"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}}
        self.put(
            "clusterqueues", name, {"spec": {"resourceGroups": [group], **(old if self.version == "v1beta1" else new)}}
        )
        self.put("localqueues", name, {"spec": {"clusterQueue": name}}, "team")

    def check(self, name: str, controller: str) -> None:
        self.put("admissionchecks", name, {"spec": {"controllerName": controller}})

    def workload(self, name: str, gpus: int, queue: str, pods: int = 1, **spec: Any) -> None:
        container = {"name": "main", "resources": {"requests": {GPU: str(gpus)}}}
        sets = [{"name": "main", "count": pods, "template": {"spec": {"containers": [container]}}}]
        meta = {"ownerReferences": [{"kind": "Job", "name": name}]}
        self.put(
            "workloads",
            name,
            {"metadata": meta, "spec": {"podSets": sets, "queueName": queue, "active": True, **spec}},
            "team",
        )

    def get(self, name: str) -> dict[str, Any]:
        with self.lock:
            return copy.deepcopy(self.objects["workloads", "team", name])

    def state(self, name: str) -> str:
        rows = self.get(name).get("status", {}).get("admissionChecks", [])
        return rows[0]["state"] if rows else ""

    # --- Kueue itself -----------------------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Evicts whom a check told to retry, reserves quota in order of creation, admits whose checks are ready."""
        with self.lock:
            for one in self._workloads():
                status = copy.deepcopy(one.get("status", {}))
                states = {row["state"] for row in status.get("admissionChecks", ())}
                if "Retry" in states and "admission" in status:
                    del status["admission"]
                    status["conditions"] = [row for row in status["conditions"] if row["type"] != "QuotaReserved"]
                    status["admissionChecks"] = []
                    one["metadata"].setdefault("labels", {})["retried"] = str(self.number)
                    self.put("workloads", one["metadata"]["name"], {**one, "status": status}, "team")
            waiting = [one for one in self._workloads() if "admission" not in one.get("status", {})]
            waiting.sort(key=lambda one: int(one["metadata"].get("labels", {}).get("retried", 0)))
            for one in waiting:
                self._reserve(one)
            for one in self._workloads():
                status = one.get("status", {})
                ready = all(row["state"] == "Ready" for row in status.get("admissionChecks", ()))
                if "admission" in status and ready and not self._is(one, "Admitted"):
                    self._set(one, "Admitted")

    def finish(self, name: str) -> None:
        self._set(self.get(name), "Finished", "Succeeded")

    def _workloads(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(one) for (plural, _, _), one in self.objects.items() if plural == "workloads"]

    def _reserve(self, one: dict[str, Any]) -> None:
        local = self.objects.get(("localqueues", "team", one["spec"]["queueName"]))
        if local is None or self._is(one, "Finished"):
            return
        name = local["spec"]["clusterQueue"]
        spec = self.objects["clusterqueues", "", name]["spec"]
        gpus = sum(
            int(pods["count"]) * int(pods["template"]["spec"]["containers"][0]["resources"]["requests"][GPU])
            for pods in one["spec"]["podSets"]
        )
        for flavor in spec["resourceGroups"][0]["flavors"]:
            used = sum(
                int(row["resourceUsage"][GPU])
                for other in self._workloads()
                if not self._is(other, "Finished")
                and other.get("status", {}).get("admission", {}).get("clusterQueue") == name
                for row in other["status"]["admission"]["podSetAssignments"]
                if row["flavors"][GPU] == flavor["name"]
            )
            if used + gpus <= int(flavor["resources"][0]["nominalQuota"]):
                rules = spec.get("admissionChecks") or [
                    rule["name"] for rule in spec["admissionChecksStrategy"]["admissionChecks"]
                ]
                row = {"name": "main", "flavors": {GPU: flavor["name"]}, "resourceUsage": {GPU: str(gpus)}}
                one["status"] = {
                    **one.get("status", {}),
                    "admission": {"clusterQueue": name, "podSetAssignments": [row]},
                    "admissionChecks": [
                        {"name": rule, "state": "Pending", "message": "", "lastTransitionTime": date(time.time())}
                        for rule in rules
                    ],
                }
                self._set(one, "QuotaReserved")
                return

    def _is(self, one: dict[str, Any], kind: str) -> bool:
        return any(
            row["type"] == kind and row["status"] == "True" for row in one.get("status", {}).get("conditions", ())
        )

    def _set(self, one: dict[str, Any], kind: str, reason: str = "") -> None:
        status = one.setdefault("status", {})
        row = {"type": kind, "status": "True", "reason": reason or kind, "lastTransitionTime": date(time.time())}
        status["conditions"] = [old for old in status.get("conditions", ()) if old["type"] != kind] + [row]
        self.put("workloads", one["metadata"]["name"], one, "team")

    # --- HTTP -------------------------------------------------------------------------------------------------------

    def apply(self, plural: str, namespace: str, name: str, body: dict[str, Any], manager: str) -> tuple[int, Any]:
        """Server-side apply of a status: rows of a map list are merged by their key; others' rows stay."""
        with self.lock:
            one = self.objects.get((plural, namespace, name))
            if one is None:
                return 404, {"kind": "Status", "code": 404, "reason": "NotFound"}
            if body.get("kind") != KINDS[plural] or not manager:
                return 400, {"kind": "Status", "code": 400, "message": "kind and fieldManager are required"}
            version = body["metadata"].get("resourceVersion")
            if version is not None and version != one["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "code": 409, "reason": "Conflict"}
            status = copy.deepcopy(one.get("status", {}))
            for field, key in (("admissionChecks", "name"), ("conditions", "type")):
                for row in body["status"].get(field, ()):
                    if field == "admissionChecks" and (
                        row.keys() < {"name", "state", "message", "lastTransitionTime"} or row["state"] not in STATES
                    ):
                        return 422, {"kind": "Status", "code": 422, "reason": "Invalid"}
                    rows = [old for old in status.get(field, ()) if old[key] != row[key]]
                    status[field] = [*rows, row]
            return 200, self.put(plural, name, {**one, "status": status}, namespace)

    def forget(self) -> None:
        """What was before cannot be watched any more."""
        with self.lock:
            self.oldest = self.number
            self.lock.notify_all()


@contextmanager
def served(kueue: Kueue) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            parts, query = self._path()
            if self._refused("GET", parts[-1]) or parts[:2] != ["apis", GROUP] or parts[2:3] != [kueue.version]:
                self._answer(404, {"kind": "Status", "code": 404})
            elif len(parts) == 3:
                self._answer(
                    200, {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{kueue.version}", "resources": []}
                )
            elif query.get("watch") == ["true"]:
                self._watch(parts[3], int(query["resourceVersion"][0]), float(query["timeoutSeconds"][0]))
            else:
                with kueue.lock:
                    items = [one for (plural, _, _), one in kueue.objects.items() if plural == parts[3]]
                    self._answer(
                        200, {"kind": "List", "metadata": {"resourceVersion": str(kueue.number)}, "items": items}
                    )

        def do_PATCH(self) -> None:
            parts, query = self._path()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._refused("PATCH", parts[-2]):
                return
            if self.headers["Content-Type"] != "application/apply-patch+yaml" or parts[-1] != "status":
                self._answer(415, {"kind": "Status", "code": 415})
                return
            namespace = parts[4] if parts[3] == "namespaces" else ""
            self._answer(*kueue.apply(parts[-3], namespace, parts[-2], body, query.get("fieldManager", [""])[0]))

        def _path(self) -> tuple[list[str], dict[str, list[str]]]:
            kueue.requests.append(f"{self.command} {self.path}")
            url = urlparse(self.path)
            return url.path.strip("/").split("/"), parse_qs(url.query)

        def _refused(self, method: str, end: str) -> bool:
            code = kueue.refuses.pop(f"{method} {end}", 0)
            if code:
                self._answer(code, {"kind": "Status", "code": code})
            return bool(code)

        def _answer(self, code: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _watch(self, plural: str, since: int, seconds: float) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            until = time.monotonic() + seconds
            with kueue.lock:
                while (left := until - time.monotonic()) > 0 and not stopped.is_set():
                    if since < kueue.oldest:
                        self._chunk(
                            {
                                "type": "ERROR",
                                "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
                            }
                        )
                        break
                    for number, which, kind, one in kueue.events:
                        if number > since and which == plural:
                            self._chunk({"type": kind, "object": one})
                    since = max(since, kueue.number)
                    kueue.lock.wait(min(left, 0.5))
            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, event: Any) -> None:
            data = json.dumps(event).encode() + b"\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

    stopped = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        stopped.set()
        with kueue.lock:
            kueue.lock.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
