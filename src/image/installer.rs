//! The program that installs wheels into a folder: pip, python's own or from a throw-away virtual environment (some systems ship
//! the one, some the other), or uv. What a user's settings say about where packages go, and from which form, is not for this
//! folder.

use std::{
    env,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;

use super::{
    ImageError, Result,
    needs::{numbers, tells_version},
    output,
};

/// The versions of Python that torch has wheels for. Another one installs those of [`ANY`]: nothing of them is run by Python.
const PYTHONS: std::ops::RangeInclusive<u32> = 10..=14;
const ANY: &str = "3.12";
/// The versions of glibc, as 2.N, that wheels for [`ANY`] may ask for: those before the one that torch's own asks for, too.
const GLIBCS: std::ops::RangeInclusive<u32> = 17..=28;

/// pip takes variables before its files; an empty one counts as absent.
const SETTLED: [(&str, &str); 3] = [("PIP_USER", "0"), ("PIP_REQUIRE_VIRTUALENV", "0"), ("PIP_DRY_RUN", "0")];
const UNSET: [&str; 8] =
    ["PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_NO_BINARY", "PIP_CONSTRAINT", "PIP_PYTHON", "PIP_PYTHON_VERSION", "PIP_PLATFORM"];

const PURPOSE: &str = "install libtorch (or set LIBTORCH to a libtorch 2.11 of your own)";

#[derive(Debug)]
pub enum Installer {
    Pip {
        words: Vec<String>,
        /// Whether torch has wheels for this Python.
        fits: bool,
    },
    Uv(PathBuf),
}

const UNREACHED: &str = "the index of packages cannot be reached: PIP_INDEX_URL and pip.conf (for uv: UV_DEFAULT_INDEX and uv.toml) and HTTPS_PROXY say where it is";

/// Signs of a failure in the output, and what to do.
const CAUSES: &[(&str, &str)] = &[
    (
        "python-build-standalone",
        "uv fetches a Python where there is none, and could not: install Python 3, or name a place for it in UV_PYTHON_INSTALL_MIRROR",
    ),
    ("No interpreter found", "uv needs some Python, and may fetch none here: install Python 3"),
    ("CERTIFICATE_VERIFY_FAILED", "a proxy has a certificate of its own: name the file with it in SSL_CERT_FILE"),
    ("UnknownIssuer", "a proxy has a certificate of its own: name the file with it in SSL_CERT_FILE"),
    (
        "suitable TLS CA certificate bundle",
        "PIP_CERT, or SSL_CERT_FILE without it, names a file that is not there: correct its path",
    ),
    // pip says of an index that it cannot reach that it has no such wheel, too.
    ("ProxyError", "the proxy refused: correct the address in HTTPS_PROXY, or sign in to it there (http://USER:PASSWORD@HOST)"),
    ("Connection refused", UNREACHED),
    ("Name or service not known", UNREACHED),
    ("name resolution", UNREACHED),
    ("Network is unreachable", UNREACHED),
    ("timed out", UNREACHED),
    (
        "No matching distribution",
        "the index has no such wheel for this machine: PIP_INDEX_URL and pip.conf say which index is asked",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "the index serves other files than were published: PIP_INDEX_URL and pip.conf say which index is asked",
    ),
    ("No space left on device", "free some space, then try again"),
];

/// The user's next step after an installation that failed with this output.
pub fn advice(output: &str) -> &'static str {
    let known = CAUSES.iter().find(|(sign, _)| output.contains(sign)).map(|(_, advice)| *advice);
    known.unwrap_or(
        "`pip config list` shows pip's own settings, and HTTPS_PROXY and PIP_INDEX_URL its index; LIBTORCH takes a libtorch that is here already",
    )
}

/// The program that will do, before anything is made for it. `fits`: whether torch has wheels for this Python.
#[derive(Debug)]
pub enum Means {
    Pip { fits: bool },
    Venv { fits: bool },
    Uv(PathBuf),
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pip { .. } => f.write_str("with pip"),
            Self::Venv { .. } => f.write_str("with venv"),
            Self::Uv(program) => write!(f, "{} does without", program.display()),
        }
    }
}

impl Means {
    /// Looks for one; makes nothing.
    pub async fn find() -> Result<Self> {
        let python = Self::of_python().await;
        let Err((why, fix)) = python else { return python.map_err(|(why, fix)| ImageError::NoInstaller { why, fix }) };
        which::which("uv").map(Self::Uv).map_err(|_| ImageError::NoInstaller { why, fix })
    }

    /// Or why there is none, and the fix.
    async fn of_python() -> Result<Self, (String, &'static str)> {
        let no_python = |why: String| (why, "install Python 3 with pip, or uv");
        let python = which::which("python3").map_err(|_| no_python("python3 is not in PATH".to_owned()))?;
        let run = async |arguments: &[&str]| {
            let output = output("python3", arguments, PURPOSE).await.ok().filter(|output| output.status.success());
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let Some(version) = run(&["-c", "import sys; print(*sys.version_info[:2])"]).await else {
            let said = tells_version(&python).await.err().unwrap_or_else(|| "it runs no program".to_owned());
            return Err(no_python(format!("python3 does not work: {said}")));
        };
        let fits = version.strip_prefix("3 ").and_then(|minor| minor.parse().ok()).is_some_and(|minor| PYTHONS.contains(&minor));
        let pip = run(&["-m", "pip", "--version"]).await;
        if pip.as_ref().is_some_and(|said| too_old(said).is_none()) {
            return Ok(Self::Pip { fits });
        }
        if run(&["-c", "import venv, ensurepip; print('pip', ensurepip.version())"])
            .await
            .is_some_and(|said| too_old(&said).is_none())
        {
            return Ok(Self::Venv { fits });
        }
        Err(match pip.as_deref().and_then(too_old) {
            Some(version) => (
                format!("the pip of python3 is {version}, and these wheels need {LEAST}"),
                "python3 -m pip install --user --upgrade pip, or install uv",
            ),
            None => ("python3 has neither pip nor venv".to_owned(), "install python3-pip, python3-venv or uv"),
        })
    }
}

/// The first pip that knows the wheels' names for systems, `manylinux_2_28`.
const LEAST: &str = "20.3";

/// The version in `pip 20.0.2 from ...`, if it is too old.
fn too_old(said: &str) -> Option<&str> {
    let version = said.strip_prefix("pip ")?.split_whitespace().next()?;
    (numbers(version)? < numbers(LEAST)?).then_some(version)
}

impl Installer {
    /// Finds one; a virtual environment is made in `partial`.
    pub async fn find(partial: &Path) -> Result<Self> {
        let fits = match Means::find().await? {
            Means::Pip { fits } => {
                return Ok(Self::Pip { words: ["python3", "-m", "pip"].map(str::to_owned).to_vec(), fits });
            }
            Means::Uv(program) => return Ok(Self::Uv(program)),
            Means::Venv { fits } => fits,
        };
        let venv = partial.join("venv").to_string_lossy().into_owned();
        let made = output("python3", &["-m", "venv", &venv], PURPOSE).await?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stdout).trim().lines().last().unwrap_or_default().to_owned();
            let why = format!("python3 has no pip, and makes no virtual environment: {said}");
            return Err(ImageError::NoInstaller { why, fix: "install python3-pip, python3-venv or uv" });
        }
        Ok(Self::Pip { words: vec![format!("{venv}/bin/python"), "-m".to_owned(), "pip".to_owned()], fits })
    }

    /// The installation of the wheels that the file names by their digests, and of nothing else, into a folder.
    pub fn command(&self, wheels: &Path, folder: &Path) -> Command {
        let mut command = match self {
            Self::Pip { words, fits } => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]).args(["install", "--no-compile", "--no-cache-dir", "--disable-pip-version-check"]);
                // That of a pip.conf, which no variable takes back.
                command.arg("--prefix=");
                command.arg("--only-binary=:all:").args(if *fits { Vec::new() } else { of_any() });
                command
            }
            Self::Uv(program) => {
                let mut command = Command::new(program);
                command.args(["pip", "install", "--no-cache", "--no-progress", "--only-binary=:all:", "--python-version", ANY]);
                command
            }
        };
        command.args(["--require-hashes", "--no-deps", "--requirement"]).arg(wheels).arg("--target").arg(folder);
        command.stdin(Stdio::null()).kill_on_drop(true);
        settle(&mut command, |name| env::var_os(name));
        command
    }
}

/// Overrides the settings that would lead elsewhere.
fn settle(command: &mut Command, variable: impl Fn(&str) -> Option<OsString>) {
    command.envs(SETTLED);
    for name in UNSET {
        command.env_remove(name);
    }
    // uv and cargo read this one; pip has a variable of its own.
    if let (None, Some(file)) = (variable("PIP_CERT"), variable("SSL_CERT_FILE")) {
        command.env("PIP_CERT", file);
    }
}

/// pip's arguments for the wheels of a Python that is not there.
fn of_any() -> Vec<String> {
    let arch = env::consts::ARCH;
    let systems = if cfg!(target_os = "macos") {
        vec!["macosx_11_0_arm64".to_owned()]
    } else {
        // pip takes the names as they are: one of glibc 2.28 does not stand for those of the versions before it.
        let of_glibc = GLIBCS.rev().map(|minor| format!("manylinux_2_{minor}_{arch}"));
        of_glibc.chain([format!("manylinux2014_{arch}")]).collect()
    };
    let python = ["--ignore-requires-python", "--python-version", ANY, "--implementation", "cp"].map(str::to_owned);
    python.into_iter().chain(systems.into_iter().flat_map(|system| ["--platform".to_owned(), system])).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    /// A wheel with one file, and its line for pip; `tag` says for which Python and system it is.
    const TOY: &str = r#"
import base64, hashlib, sys, zipfile
folder, tag, python = sys.argv[1:]
name = f"{folder}/toy-1.0-{tag}.whl"
files = {"toy/lib.so": b"library", "toy-1.0.dist-info/METADATA": ("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nRequires-Python: " + python + "\n").encode(),
         "toy-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()}
digest = lambda data: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
record = "".join(f"{path},{digest(data)},{len(data)}\n" for path, data in files.items()) + "toy-1.0.dist-info/RECORD,,\n"
with zipfile.ZipFile(name, "w") as wheel:
    for path, data in {**files, "toy-1.0.dist-info/RECORD": record.encode()}.items(): wheel.writestr(path, data)
print(f"toy==1.0 --hash=sha256:{hashlib.sha256(open(name, 'rb').read()).hexdigest()}")
"#;

    async fn installs(installer: &Installer, tag: &str, variables: &[(&str, &str)]) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        // None has such wheels by itself.
        let python = if matches!(installer, Installer::Pip { fits: false, .. }) { ">=3.99" } else { ">=3" };
        let made = Command::new("python3").args(["-c", TOY]).arg(path).args([tag, python]).output().await.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let wheels = path.join("wheels.txt");
        fs::write(&wheels, made.stdout).unwrap();
        let conf = path.join("pip.conf");
        fs::write(&conf, "[global]\nuser = true\nrequire-virtualenv = true\n").unwrap();
        let mut command = installer.command(&wheels, &path.join("site"));
        command.envs(variables.iter().copied()).env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", path);
        command.env("UV_OFFLINE", "1").env("UV_FIND_LINKS", path);
        if variables.is_empty() {
            command.env("PIP_CONFIG_FILE", &conf);
        }
        settle(&mut command, |_| None);
        let ended = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        if ended.status.success() && path.join("site/toy/lib.so").is_file() { Ok(()) } else { Err(said) }
    }

    #[tokio::test]
    async fn a_users_pip_settings_lead_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let found = Installer::find(folder.path()).await.unwrap();
        for variables in [
            &[][..],
            &[("PIP_USER", "1")],
            &[("PIP_REQUIRE_VIRTUALENV", "1")],
            &[("PIP_TARGET", "/nonexistent"), ("PIP_PREFIX", "/nonexistent"), ("PIP_ROOT", "/nonexistent")],
            &[("PIP_NO_BINARY", ":all:"), ("PIP_PYTHON_VERSION", "2.7"), ("PIP_PLATFORM", "win_amd64")],
        ] {
            installs(&found, "py3-none-any", variables).await.unwrap_or_else(|said| panic!("{variables:?}: {said}"));
        }
    }

    #[tokio::test]
    async fn a_python_without_wheels_of_its_own_takes_those_of_another() {
        let words = ["python3", "-m", "pip"].map(str::to_owned).to_vec();
        let old = Installer::Pip { words, fits: false };
        let of = |python: &str, glibc| format!("{python}-manylinux_2_{glibc}_{}", env::consts::ARCH);
        let tags = [of("cp312-cp312", 28), of("py3-none", 27), of("py3-none", 25), of("py3-none", 17)];
        for tag in tags {
            installs(&old, &tag, &[("PIP_USER", "1")]).await.unwrap_or_else(|said| panic!("{tag}: {said}"));
        }
        let said = installs(&old, "cp38-cp38-win_amd64", &[("PIP_USER", "1")]).await.unwrap_err();
        assert!(advice(&said).contains("no such wheel for this machine"), "{said}");
    }

    #[tokio::test]
    #[ignore = "needs uv: FT_UV names the program"]
    async fn apart_uv_installs_the_same() {
        let uv = Installer::Uv(env::var_os("FT_UV").expect("FT_UV names uv").into());
        for tag in ["py3-none-any".to_owned(), format!("cp312-cp312-manylinux_2_28_{}", env::consts::ARCH)] {
            installs(&uv, &tag, &[]).await.unwrap_or_else(|said| panic!("{tag}: {said}"));
        }
        takes_the_certificate_that_is_named(&uv).await;
    }

    /// An index of packages whose certificate no system knows.
    const INDEX: &str = r#"
import functools, http.server, ssl, sys
folder = sys.argv[1]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(f"{folder}/certificate.pem", f"{folder}/key.pem")
server.socket = tls.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

    /// Behind a proxy that reads what passes: with the file that SSL_CERT_FILE names, and without one.
    async fn takes_the_certificate_that_is_named(installer: &Installer) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let packages = path.join("simple/toy");
        fs::create_dir_all(&packages).unwrap();
        let made = Command::new("python3").args(["-c", TOY]).arg(&packages).args(["py3-none-any", ">=3"]).output().await.unwrap();
        let wheels = path.join("wheels.txt");
        fs::write(&wheels, made.stdout).unwrap();
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = path.join("certificate.pem");
        fs::write(&certificate, own.cert.pem()).unwrap();
        fs::write(path.join("key.pem"), own.signing_key.serialize_pem()).unwrap();
        let mut index = Command::new("python3");
        index.args(["-c", INDEX]).arg(path).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut index = index.spawn().unwrap();
        let port = BufReader::new(index.stdout.take().unwrap()).lines().next_line().await.unwrap().unwrap();
        let address = format!("https://127.0.0.1:{port}/simple");
        for named in [None, Some(&certificate)] {
            let site = path.join("site");
            let mut command = installer.command(&wheels, &site);
            for name in ["PIP_CERT", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_FIND_LINKS"] {
                command.env_remove(name);
            }
            command.envs([
                ("PIP_INDEX_URL", &*address),
                ("UV_INDEX_URL", &address),
                ("NO_PROXY", "127.0.0.1"),
                ("PIP_RETRIES", "0"),
            ]);
            command.env("PIP_CONFIG_FILE", "/dev/null").envs(named.map(|file| ("SSL_CERT_FILE", file)));
            settle(&mut command, |name| named.filter(|_| name == "SSL_CERT_FILE").map(OsString::from));
            let ended = command.output().await.unwrap();
            let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
            assert_eq!(site.join("toy/lib.so").is_file(), named.is_some(), "{said}");
            assert!(named.is_some() || advice(&said).contains("name the file with it in SSL_CERT_FILE"), "{said}");
        }
    }

    #[tokio::test]
    async fn a_certificate_of_a_proxy_is_taken_where_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        takes_the_certificate_that_is_named(&Installer::find(folder.path()).await.unwrap()).await;
    }

    #[test]
    fn a_pip_that_knows_no_name_of_our_wheels_is_too_old() {
        let of = |version: &str| format!("pip {version} from /usr/lib/python3/dist-packages/pip (python 3.8)");
        for version in ["9.0.1", "18.1", "20.0.2", "20.2.4"] {
            assert_eq!(too_old(&of(version)), Some(version));
        }
        for said in [&*of("20.3"), &of("20.3.4"), &of("23.0.1"), &of("26.1"), "", "pip"] {
            assert_eq!(too_old(said), None, "{said}");
        }
    }

    #[test]
    fn the_cause_of_a_failure_is_named() {
        assert!(
            advice("Failed to download `https://github.com/astral-sh/python-build-standalone/x`: Name or service not known")
                .starts_with("uv fetches")
        );
        assert!(advice("[SSL: CERTIFICATE_VERIFY_FAILED] self signed").contains("SSL_CERT_FILE"));
        assert!(advice("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES").contains("other files"));
        assert!(advice("Could not find a suitable TLS CA certificate bundle, invalid path: /none").contains("is not there"));
        assert!(advice("something else").contains("PIP_INDEX_URL"));
    }
}
