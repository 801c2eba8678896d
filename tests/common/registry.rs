//! Real registries: Debian's docker-registry, open or with a sign-in.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::{free_port, listening};

/// `me` with the password `right`, as htpasswd -B writes it.
const PASSWORDS: &str = "me:$2y$05$abcdefghijklmnopqrstuu8xaCxxL82bnl.UY74PMksDxIJShppPC\n";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    Open,
    Basic,
    /// A token service that lets `me` write below `team/` and nowhere else.
    Token,
}

pub struct Registry {
    directory: tempfile::TempDir,
    port: u16,
    programs: Vec<Child>,
}

impl Registry {
    pub fn start(auth: Auth) -> Self {
        Self::at(auth, tempfile::tempdir().expect("a directory"))
    }

    /// With its storage in this directory.
    pub fn at(auth: Auth, directory: tempfile::TempDir) -> Self {
        let (port, token_port) = (free_port(), free_port());
        let mut registry = Self { directory, port, programs: Vec::new() };
        let path = |name: &str| registry.directory.path().join(name);
        let authentication = match auth {
            Auth::Open => String::new(),
            Auth::Basic => format!("auth: {{htpasswd: {{realm: test, path: {}}}}}", path("passwords").display()),
            Auth::Token => format!(
                "auth: {{token: {{realm: 'http://127.0.0.1:{token_port}/token', service: test, issuer: test, rootcertbundle: {}}}}}",
                path("cert.pem").display()
            ),
        };
        let storage = path("storage");
        fs::write(path("passwords"), PASSWORDS).expect("written");
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{authentication}\n",
            storage.display()
        );
        fs::write(path("config.yml"), config).expect("written");
        if auth == Auth::Token {
            let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/token_server.py");
            let mut command = Command::new("python3");
            command.arg(server).arg(token_port.to_string()).arg(registry.directory.path());
            registry.programs.push(command.spawn().expect("python3 runs"));
            listening(token_port);
        }
        registry.begin();
        registry
    }

    /// Starts the registry itself, again after [`Registry::kill`].
    pub fn begin(&mut self) {
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(self.directory.path().join("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        self.programs.push(command.spawn().expect("docker-registry runs"));
        listening(self.port);
    }

    pub fn kill(&mut self) {
        let mut program = self.programs.pop().expect("it runs");
        program.kill().expect("killed");
        program.wait().expect("gone");
    }

    pub fn repository(&self, path: &str) -> String {
        format!("127.0.0.1:{}/{path}", self.port)
    }

    /// Writes the file of a `docker login`.
    pub fn login(&self, home: &Path, user: &str, password: &str) {
        let pair = format!("{user}:{password}");
        let mut encoder = Command::new("base64").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("base64 runs");
        encoder.stdin.take().expect("its input").write_all(pair.as_bytes()).expect("heard");
        let auth = String::from_utf8(encoder.wait_with_output().expect("it ends").stdout).expect("ASCII");
        let config = serde_json::json!({ "auths": { format!("127.0.0.1:{}", self.port): { "auth": auth.trim() } } });
        fs::create_dir_all(home.join(".docker")).expect("a directory");
        fs::write(home.join(".docker/config.json"), config.to_string()).expect("written");
    }

    /// The tags of a repository, from the registry's own files.
    pub fn tags(&self, path: &str) -> Vec<String> {
        let tags = self.storage().join("repositories").join(path).join("_manifests/tags");
        let entries = fs::read_dir(tags).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Digests and sizes of everything the registry has.
    pub fn blobs(&self) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        let folders = fs::read_dir(self.storage().join("blobs/sha256")).into_iter().flatten().flatten();
        for entry in folders.flat_map(|folder| fs::read_dir(folder.path()).expect("a directory").flatten()) {
            let size = fs::metadata(entry.path().join("data")).map_or(0, |meta| meta.len());
            found.push((entry.file_name().to_string_lossy().into_owned(), size));
        }
        found
    }

    /// Compressed sizes in bytes of the layers of an image, named by the digest at the end of `reference`.
    pub fn image(&self, reference: &str) -> Vec<u64> {
        let digest = reference.trim().rsplit_once("sha256:").expect("a digest").1;
        let manifest = fs::read(self.storage().join("blobs/sha256").join(&digest[..2]).join(digest).join("data")).expect("a blob");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let layers = manifest["layers"].as_array().expect("layers");
        layers.iter().map(|layer| layer["size"].as_u64().expect("a size")).collect()
    }

    /// Bytes of layers that are on their way.
    pub fn coming(&self, path: &str) -> u64 {
        let uploads = self.storage().join("repositories").join(path).join("_uploads");
        let entries = fs::read_dir(uploads).into_iter().flatten().flatten();
        entries.map(|entry| fs::metadata(entry.path().join("data")).map_or(0, |meta| meta.len())).sum()
    }

    fn storage(&self) -> PathBuf {
        self.directory.path().join("storage/docker/registry/v2")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        while !self.programs.is_empty() {
            self.kill();
        }
    }
}
