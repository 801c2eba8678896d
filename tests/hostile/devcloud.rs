//! The simulated cloud runs scripts as the user who started it: no other user of the computer, and no page in a browser, may have
//! it do so.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::common::Sandbox;

struct Devcloud {
    child: Child,
    address: SocketAddr,
    token: String,
    sandbox: Sandbox,
}

impl Devcloud {
    fn start() -> Self {
        Self::of("gce", 5, "FTCTL_ENDPOINT_GCE=http://", "CLOUDSDK_AUTH_ACCESS_TOKEN=")
    }

    /// One that tells so many variables, among them its address and its secret.
    fn of(service: &str, variables: usize, address: &str, secret: &str) -> Self {
        let sandbox = Sandbox::new();
        let mut child =
            sandbox.command(&["devcloud", service, "--disks", "disks", "--speed", "10"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines: Vec<String> = lines.take(variables).map(Result::unwrap).collect();
        let told = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        let (address, token) = (told(address).parse().unwrap(), told(secret));
        Self { child, address, token, sandbox }
    }

    /// The status of one request with these headers, and the answer.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        ask(self.address, method, path, headers, body)
    }
}

fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let headers: String = headers.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]).collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(answer.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    answer.read_exact(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), String::from_utf8(body).unwrap())
}

impl Drop for Devcloud {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

const INSTANCES: &str = "/compute/v1/projects/devcloud/zones/us-central1-a/instances";

fn machine(startup: &str) -> String {
    let zone = "/compute/v1/projects/devcloud/zones/us-central1-a";
    json!({
        "name": "vm-a1",
        "machineType": format!("{zone}/machineTypes/custom-12-79872"),
        "guestAccelerators": [{ "acceleratorType": format!("{zone}/acceleratorTypes/nvidia-tesla-v100"), "acceleratorCount": 1 }],
        "disks": [{ "boot": true, "autoDelete": true, "initializeParams": { "diskSizeGb": "200" } }],
        "scheduling": { "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "automaticRestart": false, "onHostMaintenance": "TERMINATE" },
        "metadata": { "items": [{ "key": "startup-script", "value": startup }, { "key": "word", "value": "hello" }] },
    })
    .to_string()
}

#[test]
fn only_who_has_its_token_is_a_client() {
    let devcloud = Devcloud::start();
    let here = devcloud.address.to_string();
    let token = format!("Bearer {}", devcloud.token);
    let requests = [
        ("GET", INSTANCES, ""),
        ("POST", INSTANCES, &machine("touch ran")),
        ("GET", "/devcloud/calls", ""),
        ("GET", "/devcloud/bill", ""),
        ("PUT", "/devcloud/script", "{}"),
        ("POST", "/devcloud/skip?seconds=100000", ""),
        ("POST", "/devcloud/preempt?instance=vm-a1", ""),
        ("GET", "/nonsense", ""),
    ];
    for (method, path, body) in requests {
        for guess in ["Bearer x", "Bearer devcloud", "Bearer ", "Bearer of-vm-a1", &token[..token.len() - 1], "Basic eDp4"] {
            let (status, said) = devcloud.ask(method, path, &[("Host", &here), ("Authorization", guess)], body);
            assert_eq!(status, 401, "{method} {path} {guess}: {said}");
            let said: Value = serde_json::from_str(&said).expect("as Google answers");
            assert_eq!(said["error"]["code"], 401, "{said}");
        }
        assert_eq!(devcloud.ask(method, path, &[("Host", &here)], body).0, 401, "{method} {path}");
        for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "metadata.google.internal"] {
            let (status, said) = devcloud.ask(method, path, &[("Host", host), ("Authorization", &token)], body);
            assert_eq!(status, 403, "{method} {path} {host}: {said}");
        }
        assert_eq!(devcloud.ask(method, path, &[("Authorization", &token)], body).0, 403, "{method} {path}: no host");
    }
    let (status, calls) = devcloud.ask("GET", "/devcloud/calls", &[("Host", &here), ("Authorization", &token)], "");
    assert_eq!((status, calls.as_str()), (200, "[]"), "nothing of it was heard");
    assert_eq!(devcloud.ask("GET", INSTANCES, &[("Host", "localhost"), ("Authorization", &token)], "").0, 200);
    assert_ne!(Devcloud::start().token, devcloud.token, "each start has its own");
}

#[test]
fn a_simulated_workspace_has_no_client_without_its_token() {
    let devcloud = Devcloud::of("azureml", 8, "FTCTL_ENDPOINT_AZUREML=http://", "IDENTITY_HEADER=");
    let here = devcloud.address.to_string();
    let workspace = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/devcloud/providers\
                     /Microsoft.MachineLearningServices/workspaces/devcloud";
    let job = format!("{workspace}/jobs/x?api-version=2025-12-01");
    let identity = "/identity?resource=https://management.azure.com/&api-version=2019-08-01";
    let signed_in = [("Host", here.as_str()), ("X-IDENTITY-HEADER", devcloud.token.as_str())];
    let (status, token) = devcloud.ask("GET", identity, &signed_in, "");
    assert_eq!(status, 200, "{token}");
    let token: Value = serde_json::from_str(&token).unwrap();
    let token = format!("Bearer {}", token["access_token"].as_str().unwrap());
    let secret = format!("Bearer {}", devcloud.token);
    let forged = format!("{}x", &token[..token.len() - 1]);
    let requests = [
        ("GET", format!("{workspace}?api-version=2025-12-01"), ""),
        ("PUT", job.clone(), "{}"),
        ("DELETE", job.clone(), ""),
        ("GET", "/devcloud/calls".to_owned(), ""),
        ("PUT", "/devcloud/script".to_owned(), "{}"),
        ("POST", "/devcloud/skip?seconds=100000".to_owned(), ""),
        ("GET", "/nonsense".to_owned(), ""),
    ];
    for (method, path, body) in &requests {
        for guess in ["Bearer x", "Bearer ", "Bearer eyJhbGciOiJub25lIn0.e30.", &forged, "Basic eDp4"] {
            let (status, said) = devcloud.ask(method, path, &[("Host", &here), ("Authorization", guess)], body);
            assert_eq!(status, 401, "{method} {path} {guess}: {said}");
        }
        assert_eq!(devcloud.ask(method, path, &[("Host", &here)], body).0, 401, "{method} {path}");
        for host in ["evil.example", "127.0.0.1.evil.example", "", "169.254.169.254"] {
            let (status, said) = devcloud.ask(method, path, &[("Host", host), ("Authorization", &token)], body);
            assert_eq!(status, 403, "{method} {path} {host}: {said}");
        }
    }
    for wrong in ["", "x", &devcloud.token[1..]] {
        assert_eq!(devcloud.ask("GET", identity, &[("Host", &here), ("X-IDENTITY-HEADER", wrong)], "").0, 401, "{wrong}");
    }
    assert_eq!(devcloud.ask("GET", identity, &[("Host", "evil.example"), ("X-IDENTITY-HEADER", &devcloud.token)], "").0, 403);
    let (status, calls) = devcloud.ask("GET", "/devcloud/calls", &[("Host", &here), ("Authorization", &secret)], "");
    let calls: Vec<Value> = serde_json::from_str(&calls).expect("calls");
    assert!(status == 200 && calls.iter().all(|call| call["call"] == "Identity_GetToken"), "nothing else was heard: {calls:?}");
    let asked = devcloud.ask("GET", &requests[0].1, &[("Host", &here), ("Authorization", &token)], "");
    assert_eq!(asked.0, 200, "{}", asked.1);
}

#[test]
fn a_machines_metadata_is_its_own() {
    let devcloud = Devcloud::start();
    let (here, token) = (devcloud.address.to_string(), format!("Bearer {}", devcloud.token));
    let client = [("Host", here.as_str()), ("Authorization", token.as_str())];
    let (status, said) =
        devcloud.ask("POST", INSTANCES, &client, &machine("echo \"$GCE_METADATA_HOST\" >host; mv host told; sleep 60"));
    assert_eq!(status, 200, "{said}");
    let told = devcloud.sandbox.path("disks/us-central1-a.vm-a1/told");
    let begun = Instant::now();
    while !told.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the machine starts");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = std::fs::read_to_string(told).unwrap();
    let (address, secret) = told.trim().split_once('/').unwrap();
    let server: SocketAddr = address.parse().unwrap();
    let get = |path: &str, host: &str| ask(server, "GET", path, &[("Host", host), ("Metadata-Flavor", "Google")], "");
    let word = "computeMetadata/v1/instance/attributes/word";
    assert_eq!(get(&format!("/{secret}/{word}"), address), (200, "hello".to_owned()));
    assert_eq!(get(&format!("/{secret}/{word}"), "evil.example").0, 403);
    for path in [format!("/{word}"), format!("/{}/{word}", secret.replace(char::is_alphanumeric, "0")), "/".to_owned()] {
        assert_eq!(get(&path, address).0, 404, "{path}");
    }
    assert_eq!(ask(server, "POST", "/devcloud/power-off", &[("Host", address)], "").0, 404);
    let (_, machine) = devcloud.ask("GET", &format!("{INSTANCES}/vm-a1"), &client, "");
    assert!(machine.contains("\"RUNNING\""), "it has its power: {machine}");
}
