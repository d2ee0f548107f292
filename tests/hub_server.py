"""A small look-alike of the Hugging Face Hub's HTTP API for offline tests: standard library, loopback only.

It speaks what publishing, pushing and loading ask for: whoami, repository create, preupload, commit (inline files and
LFS pointers), git-LFS upload, repository info, tree, branches, resolve (HEAD, GET), the Hub's error codes,
and private repositories. The token `hf_test` is user "tester". It does not speak Xet: switch that off in the client.

`failures` (regex of a path: status) injects errors, `requests` lists what came.
"""

import base64
import hashlib
import json
import os
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

SINGULAR = {"models": "model", "datasets": "dataset", "spaces": "space"}
ALWAYS_LFS = re.compile(r"\.(safetensors|bin|pt|pth|parquet|arrow|gz)$")
LFS_THRESHOLD, TEXT_THRESHOLD = 4096, 10 << 20  # bytes from which a binary, a text file is stored as LFS
GITATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())


def git_blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class HubError(Exception):
    """An answer with an error status; `code` is the Hub's X-Error-Code."""

    def __init__(self, status: int, code: str = "", message: str = "", headers: dict | None = None):
        self.status, self.code, self.message, self.headers = status, code, message or code, headers or {}


class Store:
    """Repositories as JSON files beside a pool of blobs named by their hash."""

    def __init__(self, root: Path):
        self.root, self.lock = Path(root), threading.RLock()
        (self.root / "blobs").mkdir(parents=True, exist_ok=True)

    def blob(self, oid: str) -> Path:
        return self.root / "blobs" / os.path.basename(oid)

    def put_blob(self, oid: str, data: bytes) -> None:
        self._replace(self.blob(oid), data)

    def repo_file(self, kind: str, repo_id: str) -> Path:
        return self.root / "repos" / kind / f"{repo_id.replace('/', '--')}.json"

    def load(self, kind: str, repo_id: str) -> dict | None:
        try:
            return json.loads(self.repo_file(kind, repo_id).read_text())
        except FileNotFoundError:
            return None

    def save(self, kind: str, repo_id: str, repo: dict) -> None:
        self._replace(self.repo_file(kind, repo_id), json.dumps(repo).encode())

    def commit(self, repo: dict, branch: str, files: dict, title: str, message: str = "") -> str:
        parent = repo["refs"].get(branch)
        sha = hashlib.sha1(json.dumps([parent, files, title, time.time_ns()]).encode()).hexdigest()
        repo["commits"][sha] = {"parent": parent, "files": files, "title": title, "message": message, "date": now()}
        repo["refs"][branch] = sha
        return sha

    def _replace(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")
        temporary.write_bytes(data)
        os.replace(temporary, path)


class HubServer(ThreadingHTTPServer):
    """The server and what its requests share."""

    daemon_threads = True

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.store = Store(root)
        self.users = {"hf_test": "tester"}  # token -> name
        self.failures: dict[str, int] = {}  # regex of a path -> status
        self.requests: list[tuple[str, str, int]] = []  # method, path, bytes of the body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Silence: the requests are in `requests`."""

    # ---- plumbing

    def do_GET(self):
        url = urlsplit(self.path)
        path, self.query = url.path, parse_qs(url.query)
        self.body = self._read_body()
        self.server.requests.append((self.command, path, len(self.body)))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        self.user = self.server.users.get(token)
        try:
            self._dispatch(path)
        except HubError as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": error.message} if error.code else {}
            self.answer({"error": error.message}, error.status, headers | error.headers)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:  # a bug here must show in the client, not hang it
            self.answer({"error": repr(error)}, 500)

    do_HEAD = do_POST = do_PUT = do_GET

    def _dispatch(self, path: str) -> None:
        for pattern, status in list(self.server.failures.items()):
            if re.search(pattern, path):
                raise HubError(status, "Injected")
        for methods, pattern, action in ROUTES:
            match = pattern.fullmatch(path)
            if match and self.command in methods:
                groups = {name: unquote(value) if value else value for name, value in match.groupdict().items()}
                if "kind" in groups:
                    groups["kind"] = SINGULAR[(groups["kind"] or "models").rstrip("/")]
                return action(self, **groups)
        raise HubError(404, message=f"no route for {self.command} {path}")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, data=None, status: int = 200, headers: dict | None = None) -> None:
        """Send `data` as it is if bytes, otherwise as JSON."""
        content = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": len(content)} | (headers or {})
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    @property
    def host(self) -> str:
        return f"http://{self.headers['Host']}"

    def repo_url(self, kind: str, repo_id: str) -> str:
        return f"{self.host}/{'' if kind == 'model' else kind + 's/'}{repo_id}"

    # ---- access

    def logged_in(self) -> str:
        if not self.user:
            raise HubError(401, message="Invalid username or password.")
        return self.user

    def repo(self, kind: str, repo_id: str, write: bool = False) -> dict:
        if write:
            self.logged_in()
        repo = self.server.store.load(kind, repo_id)
        owner = repo_id.split("/")[0]
        if repo is None or (repo["private"] and self.user != owner and not repo["org"]):
            raise HubError(404 if self.user else 401, "RepoNotFound", "Repository not found")
        if write and owner != self.user and not repo["org"]:
            raise HubError(403, message="You don't have the rights")
        return repo

    def commit_of(self, repo: dict, revision: str | None) -> tuple[str, dict]:
        """Resolve a branch, tag or commit to (commit, its files by path)."""
        revision = revision or "main"
        sha = repo["refs"].get(revision)
        sha = sha or (revision if revision in repo["commits"] else None)
        if not sha:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repo["commits"][sha]["files"]

    # ---- account and repositories

    def whoami(self):
        token = {"displayName": "test", "role": "write"}
        name = self.logged_in()
        self.answer(
            {"type": "user", "id": "0", "name": name, "fullname": name, "orgs": [], "auth": {"accessToken": token}}
        )

    def create(self):
        user, wanted, store = self.logged_in(), self.json(), self.server.store
        kind, owner = wanted.get("type") or "model", wanted.get("organization") or user
        repo_id = f"{owner}/{wanted['name']}"
        if owner != user and owner in self.server.users.values():
            raise HubError(403, message=f"You don't have the rights to create a {kind} under the namespace {owner}")
        with store.lock:
            if store.load(kind, repo_id):
                return self.answer({"error": "You already created this repo", "url": self.repo_url(kind, repo_id)}, 409)
            private = bool(wanted.get("private") or wanted.get("visibility") == "private")
            repo = {"private": private, "org": owner != user, "created": now(), "refs": {}, "commits": {}}
            oid = git_blob_id(GITATTRIBUTES)
            store.put_blob(oid, GITATTRIBUTES)
            store.commit(repo, "main", {".gitattributes": {"oid": oid, "size": len(GITATTRIBUTES)}}, "initial commit")
            store.save(kind, repo_id, repo)
        self.answer({"url": self.repo_url(kind, repo_id), "name": repo_id, "id": repo_id})

    def info(self, kind, repo_id, revision=None):
        repo = self.repo(kind, repo_id)
        sha, files = self.commit_of(repo, revision)
        card = self._card_data(files)
        siblings = [{"rfilename": path} for path in sorted(files)]
        if "blobs" in self.query:
            siblings = [
                {"rfilename": path, "size": file["size"], "blobId": file["oid"]} | lfs_entry(file, "sha256")
                for path, file in sorted(files.items())
            ]
        self.answer(
            {
                "_id": hashlib.md5(repo_id.encode()).hexdigest()[:24],
                "id": repo_id,
                "modelId": repo_id,
                "author": repo_id.split("/")[0],
                "sha": sha,
                "private": repo["private"],
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": card.get("tags") or [],
                "cardData": card,
                "siblings": siblings,
                "createdAt": repo["created"],
                "lastModified": repo["commits"][sha]["date"],
                "usedStorage": sum(file["size"] for file in files.values()),
            }
        )

    def _card_data(self, files: dict) -> dict:
        if "README.md" not in files:
            return {}
        text = self.server.store.blob(files["README.md"]["oid"]).read_text(encoding="utf-8")
        front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        return (yaml.safe_load(front.group(1)) if front else None) or {}

    def validate_yaml(self):
        front = re.match(r"---\s*\n(.*?)\n---", self.json().get("content") or "", re.DOTALL)
        try:
            yaml.safe_load(front.group(1) if front else "")
            self.answer({"errors": [], "warnings": []})
        except yaml.YAMLError as error:
            self.answer({"errors": [{"message": str(error)}], "warnings": []}, 400)

    # ---- upload

    def preupload(self, kind, repo_id, revision):
        repo = self.repo(kind, repo_id, write=True)
        files = self.commit_of(repo, revision)[1]
        modes = []
        for file in self.json()["files"]:
            binary = b"\0" in base64.b64decode(file.get("sample") or "")
            large = file["size"] > (LFS_THRESHOLD if binary else TEXT_THRESHOLD)
            lfs = large or ALWAYS_LFS.search(file["path"])
            modes.append(
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if lfs else "regular",
                    "shouldIgnore": False,
                    "oid": files.get(file["path"], {}).get("oid"),
                }
            )
        self.answer({"files": modes, "commitOid": repo["refs"]["main"]})

    def lfs_batch(self, kind, repo_id):
        self.repo(kind, repo_id, write=True)
        objects = []
        for wanted in self.json()["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if not self.server.store.blob(wanted["oid"]).exists():
                entry["actions"] = {
                    "upload": {"href": f"{self.host}/_lfs/{wanted['oid']}", "header": {}},
                    "verify": {"href": f"{self.host}/_lfs_verify", "header": {}},
                }
            objects.append(entry)
        self.answer({"transfer": "basic", "objects": objects})

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise HubError(400, message="sha256 mismatch")
        self.server.store.put_blob(oid, self.body)
        self.answer({})

    def lfs_verify(self):
        wanted = self.json()
        blob = self.server.store.blob(wanted["oid"])
        self.answer({}, 200 if blob.exists() and blob.stat().st_size == wanted["size"] else 404)

    def commit(self, kind, repo_id, revision):
        store = self.server.store
        with store.lock:
            repo = self.repo(kind, repo_id, write=True)
            if revision not in repo["refs"]:
                raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            head, files = self.commit_of(repo, revision)
            header, files = {}, dict(files)
            for line in filter(None, map(bytes.strip, self.body.splitlines())):
                entry = json.loads(line)
                if entry["key"] == "header":
                    header = entry["value"]
                else:
                    files = self._apply(files, entry["key"], entry["value"])
            if header.get("parentCommit") not in (None, head):
                raise HubError(412, message="A commit has happened since. Please refresh and try again.")
            sha = store.commit(repo, revision, files, header.get("summary", ""), header.get("description", ""))
            store.save(kind, repo_id, repo)
        url = f"{self.repo_url(kind, repo_id)}/commit/{sha}"
        self.answer({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def _apply(self, files: dict, key: str, value: dict) -> dict:
        """One line of a commit, applied to the files so far."""
        store, path = self.server.store, value["path"]
        if key == "file":
            data = base64.b64decode(value["content"])
            oid = git_blob_id(data)
            store.put_blob(oid, data)
            return files | {path: {"oid": oid, "size": len(data)}}
        if key == "lfsFile":
            blob = store.blob(value["oid"])
            if not blob.exists():
                raise HubError(400, message=f"LFS object {value['oid']} missing")
            return files | {path: {"oid": value["oid"], "lfs": value["oid"], "size": blob.stat().st_size}}
        raise HubError(400, message=f"unknown commit entry {key}")

    # ---- history

    def create_branch(self, kind, repo_id, name):
        repo = self.repo(kind, repo_id, write=True)
        if name in repo["refs"]:
            raise HubError(409, message="Reference already exists")
        repo["refs"][name] = self.commit_of(repo, self.json().get("startingPoint"))[0]
        self.server.store.save(kind, repo_id, repo)
        self.answer({})

    # ---- files

    def tree(self, kind, repo_id, revision, path=None):
        files = self.commit_of(self.repo(kind, repo_id), revision)[1]
        prefix = f"{path.strip('/')}/" if path else ""
        entries = [file_entry(name, file) for name, file in sorted(files.items()) if name.startswith(prefix)]
        if prefix and not entries:
            raise HubError(404, "EntryNotFound", f"{path} does not exist")
        self.answer(entries)

    def resolve(self, kind, repo_id, revision, path):
        sha, files = self.commit_of(self.repo(kind, repo_id), revision)
        file = files.get(path)
        if not file:
            raise HubError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        data = self.server.store.blob(file["oid"]).read_bytes()
        headers = {
            "X-Repo-Commit": sha,
            "ETag": f'"{file["oid"]}"',
            "Content-Type": "application/octet-stream",
        }
        if "lfs" in file:
            headers |= {"X-Linked-Etag": f'"{file["lfs"]}"', "X-Linked-Size": file["size"]}
        self.answer(data, headers=headers)


def lfs_entry(file: dict, hash_name: str) -> dict:
    return {"lfs": {hash_name: file["lfs"], "size": file["size"], "pointerSize": 134}} if "lfs" in file else {}


def file_entry(path: str, file: dict) -> dict:
    return {"type": "file", "path": path, "oid": file["oid"][:40], "size": file["size"]} | lfs_entry(file, "oid")


REPO = r"(?P<repo_id>[\w.-]+/[\w.-]+)"
API = rf"/api/(?P<kind>models|datasets|spaces)/{REPO}"
GIT = rf"/(?P<kind>datasets/|spaces/)?{REPO}"
REVISION = r"(?P<revision>[^/]+)"
ROUTES = [
    (methods.split(), re.compile(pattern), action)
    for methods, pattern, action in [
        ("PUT", r"/_lfs/(?P<oid>\w{64})", Handler.lfs_put),
        ("POST", r"/_lfs_verify", Handler.lfs_verify),
        ("GET", r"/api/whoami-v2", Handler.whoami),
        ("POST", r"/api/repos/create", Handler.create),
        ("POST", r"/api/validate-yaml", Handler.validate_yaml),
        ("POST", rf"{API}/preupload/{REVISION}", Handler.preupload),
        ("POST", rf"{API}/commit/{REVISION}", Handler.commit),
        ("GET", rf"{API}/tree/{REVISION}(?:/(?P<path>.+))?", Handler.tree),
        ("POST", rf"{API}/branch/(?P<name>[^/]+)", Handler.create_branch),
        ("GET", rf"{API}(?:/revision/{REVISION})?", Handler.info),
        ("POST", rf"{GIT}\.git/info/lfs/objects/batch", Handler.lfs_batch),
        ("GET HEAD", rf"{GIT}/resolve/{REVISION}/(?P<path>.+)", Handler.resolve),
    ]
]
