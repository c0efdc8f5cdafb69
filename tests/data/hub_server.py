"""The part of Hugging Face's HTTP protocol that uploading and downloading datasets needs."""

import hashlib
import json
import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

from tests.data.faulty_server import FaultyService, Reply, Request

TOKEN = "hf_secret_token_1234"
LFS_FROM_BYTES = 2000
Files = dict[str, bytes]


@dataclass
class Repo:
    """Branches and pull requests are revisions alike."""

    revisions: dict[str, Files] = field(default_factory=lambda: {"main": {}})
    pull_requests: list[dict[str, Any]] = field(default_factory=list)

    def commit_of(self, revision: str) -> str:
        return hashlib.sha1(repr((revision, sorted(self.revisions[revision].items()))).encode()).hexdigest()


@dataclass
class HubServer(FaultyService):
    repos: dict[str, Repo] = field(default_factory=dict)
    lfs: dict[str, bytes] = field(default_factory=dict)
    collections: dict[str, list[str]] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    read_only: bool = False

    def answer(self, request: Request) -> Reply:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        is_reading = request.method in ("GET", "HEAD")
        is_allowed = token == TOKEN if token else is_reading or request.path.startswith("/storage/")
        if not is_allowed:
            return Reply.json({"error": "Invalid credentials"}, 401)
        for pattern, handler in ROUTES:
            if match := re.fullmatch(pattern, f"{request.method} {request.path}"):
                reply: Reply = handler(self, request, *match.groups())
                return reply
        return Reply.json({"error": f"no such route: {request.method} {request.path}"}, 404)

    def create_repo(self, request: Request) -> Reply:
        wanted = request.json()
        name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
        if self.read_only:
            return Reply.json({"error": "You don't have the rights to create a dataset under this namespace"}, 403)
        if name in self.repos:
            return Reply.json({"error": "You already created this dataset repo", "url": f"{self.url}/{name}"}, 409)
        self.repos[name] = Repo()
        return Reply.json({"url": f"{self.url}/datasets/{name}"})

    def preupload(self, request: Request, _repo: str, _revision: str) -> Reply:
        def described(file: dict[str, Any]) -> dict[str, Any]:
            mode = "lfs" if file["size"] >= LFS_FROM_BYTES else "regular"
            return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

        return Reply.json({"files": [described(file) for file in request.json()["files"]]})

    def lfs_batch(self, request: Request, _repo: str) -> Reply:
        def action(wanted: dict[str, Any]) -> dict[str, Any]:
            if wanted["oid"] in self.lfs:
                return dict(wanted)
            href = f"{self.url}/storage/{wanted['oid']}?X-Amz-Signature=signed"
            return {**wanted, "actions": {"upload": {"href": href, "header": {}}}}

        objects = [action(wanted) for wanted in request.json()["objects"]]
        return Reply.json({"transfer": "basic", "objects": objects})

    def lfs_put(self, request: Request, oid: str) -> Reply:
        if hashlib.sha256(request.body).hexdigest() != oid:
            return Reply(400, b"wrong content")
        self.lfs[oid] = request.body
        return Reply()

    def commit(self, request: Request, repo_id: str, revision: str) -> Reply:
        if repo_id not in self.repos:
            return Reply.json({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        repo, wants_pull_request = self.repos[repo_id], request.query.get("create_pr") == "1"
        if self.read_only and not wants_pull_request:
            return Reply.json({"error": "Forbidden: you must have write access"}, 403)
        if revision not in repo.revisions:
            return Reply.json({"error": "Invalid rev id"}, 404, **{"X-Error-Code": "RevisionNotFound"})
        header, *operations = [json.loads(line) for line in request.body.splitlines()]
        files = dict(repo.revisions[revision])
        for operation in operations:
            value = operation["value"]
            content = self.lfs[value["oid"]] if operation["key"] == "lfsFile" else b64decode(value["content"])
            files[value["path"]] = content
        self.commits.append({**header["value"], "revision": revision})
        target, answer = revision, dict[str, Any]()
        if wants_pull_request:
            number = len(repo.pull_requests) + 1
            target = f"refs/pr/{number}"
            repo.pull_requests.append({"against": revision, "title": header["value"]["summary"]})
            answer = {"pullRequestUrl": f"{self.url}/datasets/{repo_id}/discussions/{number}"}
        repo.revisions[target] = files
        oid = repo.commit_of(target)
        return Reply.json({"commitUrl": f"{self.url}/datasets/{repo_id}/commit/{oid}", "commitOid": oid, **answer})

    def create_branch(self, _request: Request, repo_id: str, branch: str) -> Reply:
        if self.read_only:
            return Reply.json({"error": "Forbidden"}, 403)
        self.repos[repo_id].revisions.setdefault(branch, dict(self.repos[repo_id].revisions["main"]))
        return Reply.json({})

    def get_collection(self, _request: Request, slug: str) -> Reply:
        if slug not in self.collections:
            return Reply.json({"error": "Collection not found"}, 404)
        items = [
            {"_id": str(n), "id": item, "type": "dataset", "position": n}
            for n, item in enumerate(self.collections[slug])
        ]
        about = {"slug": slug, "title": slug, "owner": {"name": slug.split("/")[0]}, "position": 0, "private": True}
        return Reply.json(
            {**about, "items": items, "lastUpdated": "2025-01-01T00:00:00.000Z", "theme": "x", "upvotes": 0}
        )

    def add_to_collection(self, request: Request, slug: str) -> Reply:
        if self.read_only:
            return Reply.json({"error": "Forbidden"}, 403)
        self.collections[slug].append(request.json()["item"]["id"])
        return self.get_collection(request, slug)

    def tree(self, _request: Request, repo_id: str, revision: str) -> Reply:
        if repo_id not in self.repos:
            return Reply.json({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        files = self.repos[repo_id].revisions.get(revision)
        if files is None:
            return Reply.json({"error": "Invalid rev id"}, 404, **{"X-Error-Code": "RevisionNotFound"})
        listed = [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in files.items()
        ]
        return Reply.json(listed)

    def info(self, _request: Request, repo_id: str, revision: str = "main") -> Reply:
        if repo_id not in self.repos:
            return Reply.json({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        repo = self.repos[repo_id]
        siblings = [{"rfilename": path} for path in repo.revisions[revision]]
        about = {"_id": "1", "id": repo_id, "private": True, "tags": [], "downloads": 0, "likes": 0}
        return Reply.json({**about, "sha": repo.commit_of(revision), "siblings": siblings})

    def resolve(self, request: Request, repo_id: str, rest: str) -> Reply:
        repo = self.repos.get(repo_id)
        if repo is None:
            return Reply.json({"error": "Repository not found"}, 404, **{"X-Error-Code": "RepoNotFound"})
        by_name = {
            **{repo.commit_of(name): name for name in repo.revisions},
            **{name: name for name in repo.revisions},
        }
        revision = next((name for name in by_name if rest.startswith(f"{name}/")), None)
        if revision is None:
            return Reply.json({"error": "Invalid rev id"}, 404, **{"X-Error-Code": "RevisionNotFound"})
        content = repo.revisions[by_name[revision]].get(rest.removeprefix(f"{revision}/"))
        if content is None:
            return Reply.json({"error": "Entry not found"}, 404, **{"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repo.commit_of(by_name[revision]), "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        if wanted and request.method == "GET":
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return Reply(206, content[start:], headers)
        return Reply(200, content, headers)


_REPO = r"([\w.-]+/[\w.-]+)"
ROUTES: list[tuple[str, Any]] = [
    (r"POST /api/repos/create", HubServer.create_repo),
    (rf"POST /api/datasets/{_REPO}/preupload/(.+)", HubServer.preupload),
    (rf"POST /api/datasets/{_REPO}/commit/(.+)", HubServer.commit),
    (rf"POST /api/datasets/{_REPO}/branch/(.+)", HubServer.create_branch),
    (rf"GET /api/datasets/{_REPO}/tree/([^/]+|refs/pr/\d+)", HubServer.tree),
    (rf"GET /api/datasets/{_REPO}/revision/(.+)", HubServer.info),
    (rf"GET /api/datasets/{_REPO}", HubServer.info),
    (rf"POST /datasets/{_REPO}\.git/info/lfs/objects/batch", HubServer.lfs_batch),
    (r"PUT /storage/(\w+)", HubServer.lfs_put),
    (rf"(?:GET|HEAD) /datasets/{_REPO}/resolve/(.+)", HubServer.resolve),
    (r"GET /api/collections/([\w./-]+)", HubServer.get_collection),
    (r"POST /api/collections/([\w./-]+)/items", HubServer.add_to_collection),
]
