//! Engines that are full, or reached by other lines than a socket of this machine.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::common::{Said, Sandbox, engine::Engine, entra::make_certificates, free_port, listening};

/// Programs for tests of the way and not of the image, and a project that builds from them.
fn project(sandbox: &Sandbox, base: &str, trainer_bytes: u64) {
    let folder = sandbox.path("programs");
    fs::create_dir_all(&folder).expect("a directory");
    for name in ["ftctl", "ft-trainer"] {
        fs::copy("/bin/ls", folder.join(name)).expect("a program");
    }
    let trainer = fs::OpenOptions::new().write(true).open(folder.join("ft-trainer")).expect("a program");
    let length = trainer.metadata().expect("a program").len();
    trainer.set_len(length.max(trainer_bytes)).expect("a program");
    sandbox.write("ftctl.toml", format!("[image]\nbase = {base:?}\nprebuilt = {:?}\n", folder.display().to_string()));
}

fn at(sandbox: &Sandbox, variables: &[(&str, &str)], arguments: &[&str]) -> Said {
    let mut command = sandbox.command(arguments);
    command.envs(variables.iter().copied()).envs(env::var_os("SSL_CERT_FILE").map(|file| ("SSL_CERT_FILE", file)));
    Sandbox::said(&mut command)
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_an_engine_with_a_full_disk_says_so_and_has_no_half_image() {
    let Some(engine) = Engine::start(300, &[]) else { return };
    let base = env::var("FT_BASE").expect("tests/run names an image of a minimal system");
    engine.load(&base);
    let before = engine.images();
    let sandbox = Sandbox::new();
    let ours = |arguments: &[&str]| at(&sandbox, &[("DOCKER_HOST", &engine.host())], arguments);
    project(&sandbox, &base, 400 << 20);
    let said = ours(&["build"]);
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert!(said.stderr.to_lowercase().contains("no space left on device"), "{}", said.stderr);
    assert!(said.stderr.contains("docker system df"), "{}", said.stderr);
    assert_eq!(ours(&["down", "--all", "-y"]).code, Some(0));
    assert_eq!(engine.images(), before);
    // With room again the same engine goes on.
    engine.grow(800);
    project(&sandbox, &base, 0);
    let said = ours(&["build"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_engines_are_reached_over_tls_by_variables_and_by_a_context() {
    let certificates = tempfile::tempdir().expect("a directory");
    make_certificates(certificates.path());
    let file = |name: &str| certificates.path().join(name).display().to_string();
    let host = format!("tcp://127.0.0.1:{}", free_port());
    let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
    let options = ["--host", &host, "--tlsverify", "--tlscacert", &ca, "--tlscert", &cert, "--tlskey", &key];
    let Some(_engine) = Engine::start(64, &options) else { return };
    let sandbox = Sandbox::new();
    project(&sandbox, "scratch", 0);
    let asked = |variables: &[(&str, &str)]| at(&sandbox, variables, &["build", "--dry-run"]);
    let folder = certificates.path().display().to_string();
    let by_variables = asked(&[("DOCKER_HOST", &host), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", &folder)]);
    assert!(by_variables.stdout.contains(&format!(" at {host}")), "{}", by_variables.stderr);

    let home = sandbox.home();
    let endpoint = format!("host={host},ca={ca},cert={cert},key={key}");
    let made = Command::new("docker")
        .args(["--config", &home.join(".docker").display().to_string(), "context", "create", "far", "--docker", &endpoint])
        .output()
        .expect("docker runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let by_context = asked(&[("DOCKER_HOST", ""), ("DOCKER_CONTEXT", "far")]);
    assert!(by_context.stdout.contains(&format!(" at {host}")), "{}", by_context.stderr);

    // A stranger is not let in, and an engine without a trusted certificate is not spoken to.
    let strange = tempfile::tempdir().expect("a directory");
    fs::copy(file("ca.pem"), strange.path().join("ca.pem")).expect("a copy");
    let folder = strange.path().display().to_string();
    let stranger = [("DOCKER_HOST", host.as_str()), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", &folder)];
    let refused = asked(&stranger);
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    make_certificates(strange.path());
    let refused = asked(&stranger);
    assert_eq!(refused.code, Some(7), "{}", refused.stderr);
    assert!(refused.stderr.contains("certificate"), "{}", refused.stderr);
}

/// A real sshd for the user who runs the tests, and an `ssh` that knows its key.
struct Ssh {
    directory: tempfile::TempDir,
    port: u16,
    program: Child,
}

impl Ssh {
    fn start() -> Option<Self> {
        let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let Some(sshd) = sshd else {
            eprintln!("SKIPPED: there is no sshd");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let (port, path) = (free_port(), |name: &str| directory.path().join(name).display().to_string());
        for name in ["host", "user"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]).status();
            assert!(made.is_ok_and(|status| status.success()), "ssh-keygen makes a key");
        }
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n",
            path("host"),
            path("user.pub")
        );
        fs::write(path("sshd_config"), server).expect("written");
        let known = fs::read_to_string(path("host.pub")).expect("a key");
        fs::write(path("known"), format!("[127.0.0.1]:{port} {known}")).expect("written");
        let client = format!("IdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\n", path("user"), path("known"));
        fs::write(path("config"), client).expect("written");
        // The configuration of ssh is found by the user's entry in the system, and not by HOME.
        fs::create_dir(path("bin")).expect("a directory");
        fs::write(path("bin/ssh"), format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", path("config"))).expect("written");
        fs::set_permissions(path("bin/ssh"), fs::Permissions::from_mode(0o755)).expect("a program");
        // Where root's sshd separates privileges.
        let _only_root = fs::create_dir_all("/run/sshd");
        let mut command = Command::new(sshd);
        command.args(["-D", "-f", &path("sshd_config")]).stdin(Stdio::null()).stderr(Stdio::null());
        let program = command.spawn().expect("sshd runs");
        listening(port);
        Some(Self { directory, port, program })
    }

    /// `PATH` with the `ssh` that knows the way.
    fn path(&self) -> String {
        format!("{}:{}", self.directory.path().join("bin").display(), env::var("PATH").expect("a path"))
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ended = self.program.kill();
        let _waited = self.program.wait();
    }
}

#[test]
#[ignore = "needs a container engine: tests/run starts one"]
fn docker_engines_are_reached_over_ssh() {
    let (Some(engine), Some(ssh)) = (Engine::start(64, &[]), Ssh::start()) else { return };
    let sandbox = Sandbox::new();
    project(&sandbox, "scratch", 0);
    let host = format!("ssh://127.0.0.1:{}{}", ssh.port, engine.path().join("engine.sock").display());
    let path = ssh.path();
    let ours = |arguments: &[&str]| at(&sandbox, &[("DOCKER_HOST", &host), ("PATH", &path)], arguments);
    let built = ours(&["build"]);
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    let there = engine.docker(&["image", "inspect", built.stdout.trim()]);
    assert!(there.status.success(), "the image is on the engine at the other end");
    let again = ours(&["build", "-v"]);
    assert!(again.stdout == built.stdout && again.stderr.contains("already"), "{}", again.stderr);
    let down = ours(&["down", "--all", "-y", "--backend", "docker"]);
    assert_eq!((down.code, down.stdout.trim()), (Some(0), "there is nothing to destroy"), "{}", down.stderr);
    // This host is unknown.
    fs::write(ssh.directory.path().join("known"), "").expect("written");
    let refused = ours(&["build", "--dry-run"]);
    assert_eq!(refused.code, Some(7), "{}", refused.stderr);
    assert!(refused.stderr.contains("Host key verification failed"), "{}", refused.stderr);
}
