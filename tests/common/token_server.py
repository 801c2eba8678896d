"""token_server.py PORT DIRECTORY: a token service for docker-registry (distribution's token authentication, RS256).

Makes its key and certificate in DIRECTORY. `me` with the password `right` may pull and push below team/; others may do nothing.
"""

import base64
import http.server
import json
import subprocess
import sys
import time
import urllib.parse

port, directory = int(sys.argv[1]), sys.argv[2]
key, cert = f"{directory}/key.pem", f"{directory}/cert.pem"
subprocess.run(
    ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=test"],
    check=True, stderr=subprocess.DEVNULL)
der = "".join(open(cert).read().split("-----")[2].split())
USER = "Basic " + base64.b64encode(b"me:right").decode()


def part(value):
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def token(scopes, service):
    access = []
    for scope in scopes:
        kind, name, actions = scope.split(":")
        if name.startswith("team/"):
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
    now = int(time.time())
    head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
    body = {"iss": "test", "sub": "me", "aud": service, "exp": now + 900, "nbf": now - 60, "iat": now, "jti": str(time.time_ns()), "access": access}
    text = part(json.dumps(head).encode()) + b"." + part(json.dumps(body).encode())
    signed = subprocess.run(["openssl", "dgst", "-sha256", "-sign", key], input=text, stdout=subprocess.PIPE, check=True)
    return (text + b"." + part(signed.stdout)).decode()


class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        known = self.headers.get("Authorization") == USER
        answer = {"token": token(query.get("scope", []), query["service"][0])} if known else {"details": "incorrect username or password"}
        body = json.dumps(answer).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Service).serve_forever()
