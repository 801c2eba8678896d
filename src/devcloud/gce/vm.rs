//! Machines as processes: each is a session that runs its startup script, with tools of its own before those of this computer.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    net::TcpListener,
    process::{Child, Command},
    task::AbortHandle,
};

use super::{
    super::session,
    Devcloud, TICK,
    cloud::{Act, Place},
    metadata,
    script::TroubleKind,
};

/// The tools of a machine beside its system: their names, and their programs.
const TOOLS: [(&str, &str); 3] = [
    ("poweroff", include_str!("../../../templates/gce/devcloud/poweroff")),
    ("nvidia-smi", include_str!("../../../templates/gce/devcloud/nvidia-smi")),
    ("iptables", include_str!("../../../templates/gce/devcloud/iptables")),
];
const DOCKER: &str = include_str!("../../../templates/gce/devcloud/docker");
/// That of this computer.
const REAL_DOCKER: &str = include_str!("../../../templates/gce/devcloud/docker-of-this-computer");

pub struct Host {
    state: PathBuf,
    executable: PathBuf,
    variables: Vec<(OsString, OsString)>,
    /// Whether containers are those of this computer's engine.
    engine: bool,
    /// The machines with power; `None` when no more are made.
    powered: Mutex<Option<BTreeMap<Place, Powered>>>,
}

/// A machine with power.
struct Powered {
    group: Pid,
    metadata: AbortHandle,
    /// Its container on this computer's engine.
    container: Option<String>,
}

impl Host {
    pub fn new(state: PathBuf, executable: PathBuf, variables: Vec<(OsString, OsString)>, engine: bool) -> Self {
        Self { state, executable, variables, engine, powered: Mutex::new(Some(BTreeMap::new())) }
    }

    pub fn perform(&self, devcloud: &Arc<Devcloud>, act: Act) {
        match act {
            Act::Boot(place) => {
                let devcloud = devcloud.clone();
                tokio::spawn(async move {
                    if let Err(error) = devcloud.host.boot(&devcloud, &place).await {
                        say(&devcloud, &place, &format!("devcloud cannot boot this machine: {error}"));
                    }
                });
            }
            Act::PowerButton(place) => self.press(devcloud.clone(), place),
            Act::PowerOff(place) => self.power_off(&place),
            Act::Freeze(place) => drop(self.group(&place).map(|group| kill_process_group(group, Signal::STOP))),
        }
    }

    async fn boot(&self, devcloud: &Arc<Devcloud>, place: &Place) -> io::Result<()> {
        let disk = self.state.join(format!("{}.{}", place.0, place.1));
        let tools = disk.join("bin");
        fs::create_dir_all(&tools)?;
        let docker = if self.engine { REAL_DOCKER } else { DOCKER };
        for (name, text) in TOOLS.into_iter().chain([("docker", docker)]) {
            let path = tools.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        let script = disk.join("startup-script");
        let (text, cards, troubles) = {
            let cloud = devcloud.at_present();
            let Some(instance) = cloud.instances.get(place) else { return Ok(()) };
            let troubles: Vec<TroubleKind> = cloud.script.troubles_of(&place.1).map(|trouble| trouble.kind).collect();
            let text = instance.metadata.get("startup-script").cloned().unwrap_or_default();
            (text, instance.machine().accelerator.map_or(0, |(_, count)| count), troubles)
        };
        let has = |trouble| troubles.contains(&trouble);
        // The guest's agent, which runs startup scripts, is what such an image lacks: the machine has power and does nothing.
        let text = if has(TroubleKind::NoStartup) { "exec sleep infinity".to_owned() } else { text };
        let cards = if has(TroubleKind::NoDriver) { 0 } else { cards };
        fs::write(&script, text)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut command = self.command(&disk, &tools, &script);
        let metadata = format!("{}/{}", listener.local_addr()?, devcloud.key.of_metadata(place));
        command.env("GCE_METADATA_HOST", metadata).env("DEVCLOUD_CARDS", cards.to_string());
        let container = format!("devcloud-{}", place.1);
        command.env("DEVCLOUD_CONTAINER", &container);
        if has(TroubleKind::NoEngine) {
            command.env("DEVCLOUD_NO_ENGINE", "1");
        }
        if has(TroubleKind::NoStore) {
            command.env("DEVCLOUD_NO_STORE", "1");
        }
        let (mut child, group) = session::start(&mut command)?;
        let metadata = tokio::spawn(metadata::serve(devcloud.clone(), place.clone(), listener)).abort_handle();
        let machine = Powered { group, metadata, container: self.engine.then_some(container) };
        match &mut *self.powered() {
            Some(powered) => drop(powered.insert(place.clone(), machine)),
            // Everything was shut down while it booted.
            None => machine.cut(),
        }
        // It may have lost its power while it booted.
        if devcloud.at_present().instances.get(place).is_none_or(|instance| instance.started.is_none()) {
            self.power_off(place);
        }
        listen(devcloud, place, child.stdout.take());
        listen(devcloud, place, child.stderr.take());
        tokio::spawn(reap(devcloud.clone(), place.clone(), child));
        Ok(())
    }

    fn command(&self, disk: &Path, tools: &Path, script: &Path) -> Command {
        let path = self.variables.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
        let mut first = OsString::from(tools);
        first.push(":");
        first.push(path);
        let mut command = Command::new("bash");
        command.arg(script).current_dir(disk).env_clear().envs(self.variables.iter().cloned());
        command.env("PATH", first).env("HOME", disk).env("FTCTL_HOME", disk.join("ftctl")).env("FTCTL_RUN", disk.join("run"));
        command.env("DEVCLOUD_FTCTL", &self.executable);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn powered(&self) -> MutexGuard<'_, Option<BTreeMap<Place, Powered>>> {
        self.powered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self, place: &Place) -> Option<Pid> {
        Some(self.powered().as_ref()?.get(place)?.group)
    }

    /// Everybody hears it; when the last has gone, the machine is off before its time.
    fn press(&self, devcloud: Arc<Devcloud>, place: Place) {
        let Some(group) = self.group(&place) else { return devcloud.at_present().halted(&place) };
        let _ = kill_process_group(group, Signal::TERM);
        tokio::spawn(async move {
            while test_kill_process_group(group).is_ok() {
                tokio::time::sleep(TICK).await;
            }
            devcloud.at_present().halted(&place);
        });
    }

    fn power_off(&self, place: &Place) {
        if let Some(machine) = self.powered().as_mut().and_then(|powered| powered.remove(place)) {
            machine.cut();
        }
    }

    /// For good: a machine that boots meanwhile gets none either.
    pub fn power_off_all(&self) {
        let powered = self.powered().take();
        powered.into_iter().flat_map(BTreeMap::into_values).for_each(Powered::cut);
    }
}

impl Powered {
    fn cut(self) {
        let _ = kill_process_group(self.group, Signal::KILL);
        self.metadata.abort();
        if let Some(container) = self.container {
            // An engine's containers are no processes of the machine's. There may be none of that name.
            let _ = std::process::Command::new("docker").args(["rm", "--force", &container]).output();
        }
    }
}

/// Lines of the startup script on the serial port, as Google's guest agent writes them.
fn listen(devcloud: &Arc<Devcloud>, place: &Place, output: Option<impl AsyncRead + Send + Unpin + 'static>) {
    let Some(output) = output else { return };
    let (devcloud, place) = (devcloud.clone(), place.clone());
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            say(&devcloud, &place, &format!("startup-script: {line}"));
        }
    });
}

fn say(devcloud: &Devcloud, place: &Place, line: &str) {
    if let Some(instance) = devcloud.at_present().instances.get_mut(place) {
        instance.serial.line(line);
    }
}

async fn reap(devcloud: Arc<Devcloud>, place: Place, mut child: Child) {
    if let Ok(status) = child.wait().await {
        say(&devcloud, &place, &format!("startup-script exit status {}", status.code().unwrap_or(-1)));
    }
}
