//! The startup script of machines on Compute Engine, alone: its acts and its output in every case, held against
//! `tests/recordings/startup.txt`. Its tools write down how they are called; the metadata server is the test. `FT_RECORD=1`
//! rewrites the file.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// A machine's features and troubles: the exit codes of its tools.
struct Case {
    name: &'static str,
    docker_info: u8,
    docker_pull: u8,
    docker_run: u8,
    iptables: u8,
    driver: u8,
    cards: &'static str,
    image: &'static str,
    /// Whether the agent runs until it hears that the machine is taken away.
    waits: bool,
    /// Whether the machine has started before, and the agent was heard of then.
    again: bool,
    /// Whether anybody hands the job over.
    order: bool,
    /// Whether a group replaces the machine, and whether that obeys.
    group: Option<bool>,
    /// The metadata server's word on that.
    preempted: &'static str,
}

const WELL: Case = Case {
    name: "all is well",
    docker_info: 0,
    docker_pull: 0,
    docker_run: 0,
    iptables: 0,
    driver: 0,
    cards: "1",
    image: "registry.example/ftctl@sha256:00",
    waits: false,
    again: false,
    order: true,
    group: None,
    preempted: "FALSE",
};
const GROUPED: Case = Case { name: "all is well, and a group has made the machine", cards: "0", group: Some(true), ..WELL };

const CASES: &[Case] = &[
    WELL,
    Case { name: "no cards are wanted", cards: "0", driver: 9, ..WELL },
    Case { name: "docker does not work", docker_info: 1, ..WELL },
    Case { name: "the image cannot be pulled", docker_pull: 1, ..WELL },
    Case { name: "there is no driver", driver: 9, ..WELL },
    Case { name: "the container could ask for the machine's rights", cards: "0", iptables: 3, ..WELL },
    Case { name: "the image is in Google's registry", cards: "0", image: "us-docker.pkg.dev/p/r/ftctl@sha256:00", ..WELL },
    Case { name: "the image is not for this account", cards: "0", image: "gcr.io/p/ftctl@sha256:00", docker_pull: 1, ..WELL },
    Case { name: "the machine has started again", cards: "0", again: true, ..WELL },
    Case {
        name: "the agent hears that the machine is taken away",
        cards: "0",
        waits: true,
        docker_run: 6,
        preempted: "TRUE",
        ..WELL
    },
    Case { name: "nobody hands the job over", cards: "0", order: false, ..WELL },
    Case { name: "the store is out of reach", docker_run: 7, ..WELL },
    Case { name: "the store does not let it in", docker_run: 4, ..WELL },
    Case { name: "the container does not start", docker_run: 125, ..WELL },
    Case { name: "the agent was killed", docker_run: 137, ..WELL },
    GROUPED,
    Case { name: "the group does not obey", group: Some(false), ..GROUPED },
    Case { name: "another attempt is due, and the group makes its machine", docker_run: 6, preempted: "TRUE", ..GROUPED },
    Case { name: "the agent had no time to say so", docker_run: 137, preempted: "TRUE", ..GROUPED },
    Case { name: "the agent was killed, and the group would begin all over again", docker_run: 137, ..GROUPED },
    Case { name: "a group's machine that can do nothing", docker_info: 1, ..GROUPED },
    Case { name: "a group's machine that can do nothing because it is taken away", docker_pull: 1, preempted: "TRUE", ..GROUPED },
    Case { name: "nobody hands the job over to a group", order: false, ..GROUPED },
];

const SECRET: &str = r#"{"AZURE_STORAGE_SAS_TOKEN":"se=1"}"#;

/// Everything that happened, in order.
type Transcript = Arc<Mutex<Vec<String>>>;

fn attributes(case: &Case, host: &str) -> BTreeMap<&'static str, String> {
    let order = [
        ("attributes/ftctl-order", "{\"schema\":\"ftctl.order/1\"}".to_owned()),
        ("attributes/ftctl-environment", SECRET.to_owned()),
    ];
    let order = order.into_iter().filter(|(key, _)| case.order && !(case.again && key.ends_with("environment")));
    let machine = [
        ("name", "job-bcdfgh-a1".to_owned()),
        ("attributes/ftctl-image", case.image.to_owned()),
        ("attributes/ftctl-cards", case.cards.to_owned()),
        ("preempted", case.preempted.to_owned()),
    ];
    let group = case.group.map(|obeys| format!("http://{host}/{}", if obeys { "group" } else { "other" }));
    let has_account = case.group.is_some() || !case.image.starts_with("registry.example");
    let token = "{\"access_token\":\"ya29.x\",\"expires_in\":3599,\"token_type\":\"Bearer\"}";
    let account = has_account.then(|| ("service-accounts/default/token", token.to_owned()));
    machine.into_iter().chain(group.map(|url| ("attributes/ftctl-group", url))).chain(account).chain(order).collect()
}

/// One request to a metadata server: values are given, guest attributes written down. A sign of life has its place in no order.
fn answer(mut stream: TcpStream, attributes: &BTreeMap<&'static str, String>, transcript: &Transcript) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let (mut request, mut length, mut flavor, mut token) = (String::new(), 0, false, String::new());
    lines.read_line(&mut request)?;
    loop {
        let mut header = String::new();
        lines.read_line(&mut header)?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        length = header.strip_prefix("content-length: ").and_then(|length| length.parse().ok()).unwrap_or(length);
        flavor |= header == "metadata-flavor: google";
        token = header.strip_prefix("authorization: ").map_or(token, str::to_owned);
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body)?;
    let path = request.split(' ').nth(1).and_then(|path| path.strip_prefix("/computeMetadata/v1/instance/")).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let (status, text) = match (path.strip_prefix("guest-attributes/ftctl/"), attributes.get(path)) {
        _ if request.contains(" /group ") => {
            let method = request.split(' ').next().unwrap_or_default();
            transcript
                .lock()
                .expect("a transcript")
                .push(format!("asks the group, as {token}: {method} {}", String::from_utf8_lossy(&body)));
            (200, "{}".to_owned())
        }
        _ if !flavor => (403, String::new()),
        (Some("beat"), _) => {
            assert_eq!(String::from_utf8_lossy(&body), "Sun, 06 Nov 1994 08:49:37 GMT", "the cloud's own time");
            (200, String::new())
        }
        (Some(key), _) => {
            transcript.lock().expect("a transcript").push(format!("tells {key}: {}", String::from_utf8_lossy(&body)));
            (200, String::new())
        }
        (None, Some(value)) => (200, value.clone()),
        (None, None) => (404, String::new()),
    };
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    write!(stream, "HTTP/1.1 {status} x\r\nDate: {date}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}", text.len())
}

fn tool(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\n{text}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
}

fn play(case: &Case) -> String {
    let machine = tempfile::tempdir().expect("a machine");
    let calls = machine.path().join("calls");
    let tell = format!("echo \"runs $(basename \"$0\") $*\" >>'{}'", calls.display());
    let folder = machine.path().display();
    // A notice comes when it comes; where it is waited for it has its place, after the container began: before that the real engine
    // knows none to signal. Only a signed-in user of Google's registry has a configuration.
    let docker = format!(
        "case \"$1\" in\nkill) {waits} || exit 0; grep -q '^finds' '{calls}' || exit 1; {tell}; touch '{folder}/told'; exit;;\n*) {tell};;\nesac\ncase \"$1\" in\ninfo) exit {};;\n\
         login) echo \"told $(cat), for ${{DOCKER_CONFIG:-nobody}}\" >>'{calls}';;\npull) exit {};;\n\
         run) echo \"finds $(cd '{folder}/run' && find . -type f -printf '%m %s %p ')\" >>'{calls}'\n\
         ! {waits} || until [ -e '{folder}/told' ]; do sleep 1; done; exit {};;\nesac",
        case.docker_info,
        case.docker_pull,
        case.docker_run,
        waits = case.waits,
        calls = calls.display(),
    );
    tool(machine.path(), "docker", &docker);
    tool(machine.path(), "iptables", &format!("{tell}\nexit {}", case.iptables));
    tool(machine.path(), "nvidia-smi", &format!("[ $# = 0 ] || echo 'GPU 0: of the test'\nexit {}", case.driver));
    // Power does not wait for anybody.
    tool(machine.path(), "poweroff", &format!("{tell}\nkill -9 0"));
    tool(machine.path(), "sleep", "exec /bin/sleep 0.01");
    tool(machine.path(), "chown", &tell);

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let transcript = Transcript::default();
    let (told, known) = (transcript.clone(), attributes(case, &host));
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(answer(stream, &known, &told))));

    let path = format!("{}:{}", machine.path().display(), std::env::var("PATH").unwrap_or_default());
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("templates/gce/startup.sh");
    let mut command = Command::new("setsid");
    command.args(["--wait", "bash"]).arg(script).env_clear().env("PATH", path).env("GCE_METADATA_HOST", &host);
    let home = machine.path().join("home");
    if case.again {
        fs::create_dir(&home).expect("made");
        fs::write(home.join("begun"), "").expect("written");
    }
    command.env("FTCTL_HOME", &home).env("FTCTL_RUN", machine.path().join("run")).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    let kept = Command::new("grep").args(["-rl", "se=1"]).arg(machine.path()).output().expect("grep runs");
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "", "{}: nothing keeps the secret", case.name);
    let calls = fs::read_to_string(&calls).unwrap_or_default();
    let told = transcript.lock().expect("a transcript").join("\n");
    let said = String::from_utf8_lossy(&output.stdout);
    let whole = format!("## {}\nsays:\n{said}\ndoes:\n{calls}\n{told}\n\n", case.name);
    whole.replace(&machine.path().display().to_string(), "/MACHINE").replace(&host, "METADATA")
}

#[test]
fn the_startup_script_does_and_says_what_it_did_and_said() {
    let found: String = CASES.iter().map(play).collect();
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/startup.txt");
    if std::env::var_os("FT_RECORD").is_some() {
        fs::write(&file, &found).expect("written");
    }
    let expected = fs::read_to_string(&file).expect("the recording");
    assert!(found == expected, "the startup script changed; FT_RECORD=1 writes {} anew:\n{found}", file.display());
}
