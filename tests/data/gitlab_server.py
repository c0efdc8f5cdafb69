"""The part of MLflow's protocol that GitLab's model registry speaks."""

import hashlib
import re
from dataclasses import dataclass, field

from tests.data.faulty_server import FaultyService, Reply, Request

TOKEN = "glpat-secret-token-99"
API = "/api/v4/projects/7/ml/mlflow/api/2.0/mlflow"


@dataclass
class GitlabServer(FaultyService):
    models: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """The files of each version of each model."""
    supports_ranges: bool = True

    @property
    def tracking_uri(self) -> str:
        return f"{self.url}/api/v4/projects/7/ml/mlflow"

    def answer(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Reply.json({"message": "401 Unauthorized"}, 401)
        if request.path.startswith("/files/"):
            return self._file(request)
        call = f"{request.method} {request.path.removeprefix(API)}"
        if call == "GET /registered-models/get":
            return self._model(request.query["name"])
        if call == "POST /registered-models/create":
            return self._create(request.json()["name"])
        if call == "DELETE /registered-models/delete":
            return Reply.json({} if self.models.pop(request.json()["name"], None) is not None else _MISSING, 200)
        if call == "GET /model-versions/get":
            return self._version(request.query["name"], request.query["version"])
        if call == "POST /model-versions/create":
            body = request.json()
            [version] = [tag["value"] for tag in body["tags"] if tag["key"] == "gitlab.version"]
            if not re.fullmatch(r"\d+\.\d+\.\d+", version):
                return Reply.json({"error_code": "INVALID_PARAMETER_VALUE", "message": "not a semver"}, 400)
            self.models[body["name"]].setdefault(version, {})
            return self._version(body["name"], version)
        if call == "GET /runs/get":
            name, version = request.query["run_id"].split("@")
            return Reply.json({"run": {"info": {"artifact_uri": f"{self.url}/files/{name}/{version}/"}}})
        return Reply.json({"error": f"404 Not Found: {call}"}, 404)

    def _model(self, name: str) -> Reply:
        return Reply.json({"registered_model": {"name": name}}) if name in self.models else Reply.json(_MISSING, 404)

    def _create(self, name: str) -> Reply:
        if name in self.models:
            return Reply.json({"error_code": "RESOURCE_ALREADY_EXISTS"}, 400)
        self.models[name] = {}
        return self._model(name)

    def _version(self, name: str, version: str) -> Reply:
        if version not in self.models.get(name, {}):
            return Reply.json(_MISSING, 404)
        return Reply.json({"model_version": {"name": name, "version": version, "run_id": f"{name}@{version}"}})

    def _file(self, request: Request) -> Reply:
        _, _, name, version, path = request.path.split("/", 4)
        files = self.models[name][version]
        if request.method == "PUT":
            files[path] = request.body
            return Reply.json({"message": "201 Created"}, 201)
        if path not in files:
            return Reply.json({"message": "404 Not Found"}, 404)
        content, wanted = files[path], re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        headers = {"Content-Type": "application/octet-stream", "ETag": etag_of(content)}
        if wanted and self.supports_ranges and request.headers.get("if-range", headers["ETag"]) == headers["ETag"]:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return Reply(206, content[start:], headers)
        return Reply(200, content, headers)


def etag_of(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()}"'


_MISSING = {"error_code": "RESOURCE_DOES_NOT_EXIST"}
