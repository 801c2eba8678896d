use std::{ffi::OsString, fs, path::PathBuf};

use super::*;

/// A home, a project and an environment of their own.
struct World {
    root: tempfile::TempDir,
    variables: Vec<(&'static str, OsString)>,
}

impl World {
    fn new() -> Self {
        let world = Self { root: tempfile::tempdir().expect("a directory"), variables: Vec::new() };
        fs::create_dir_all(world.home().join(".config/ftctl")).expect("a home");
        fs::create_dir_all(world.project()).expect("a project");
        world
    }

    fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    fn project(&self) -> PathBuf {
        self.root.path().join("project")
    }

    fn user(self, text: &str) -> Self {
        fs::write(self.home().join(".config/ftctl/config.toml"), text).expect("written");
        self
    }

    fn project_file(self, text: &str) -> Self {
        fs::write(self.project().join("ftctl.toml"), text).expect("written");
        self
    }

    fn set(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    fn load(&self, flags: Layer) -> Result<Settings, SettingsError> {
        let variable = |name: &str| self.variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        let around = Surroundings { variable: &variable, home: Some(self.home()), working_directory: self.project() };
        Settings::load(flags, &around)
    }
}

fn backend(name: &str) -> Layer {
    Layer { backend: Some(name.to_owned()), ..Layer::default() }
}

fn spec(text: &str) -> JobSpec {
    JobSpec::parse(&format!("name = \"a\"\ndataset = \"d\"\n{text}"), "job.toml").expect("valid")
}

#[test]
fn each_place_hides_the_ones_below_it() {
    let world = World::new();
    let settings = world.load(Layer::default()).expect("defaults");
    assert_eq!((settings.backend.value.as_str(), &settings.backend.origin), ("local", &Origin::Default));

    let world = world.user("backend = \"user\"\nprofile = \"p\"\n[profiles.p]\nbackend = \"profile\"\n[profiles.q]\nttl = \"1h\"");
    let settings = world.load(Layer::default()).expect("profile");
    assert_eq!(settings.backend.value, "profile");
    assert!(matches!(settings.backend.origin, Origin::Profile { ref name, .. } if name == "p"));

    let settings = world.load(Layer { profile: Some("q".to_owned()), ..Layer::default() }).expect("other profile");
    assert_eq!((settings.backend.value.as_str(), settings.ttl.value.to_string().as_str()), ("user", "1h"));
    assert!(matches!(settings.backend.origin, Origin::User { .. }));

    let world = world.project_file("backend = \"project\"");
    let settings = world.load(Layer::default()).expect("project");
    assert_eq!(settings.backend.value, "project");

    let world = world.set("FTCTL_BACKEND", "environment");
    let settings = world.load(Layer::default()).expect("environment");
    assert_eq!(
        (settings.backend.value.as_str(), settings.backend.origin),
        ("environment", Origin::Environment { name: "FTCTL_BACKEND" })
    );

    let settings = world.load(backend("flag")).expect("flag");
    assert_eq!((settings.backend.value.as_str(), settings.backend.origin), ("flag", Origin::Flag { name: "--backend" }));
}

#[test]
fn the_job_file_stands_between_the_environment_and_the_files() {
    let job = spec("[compute]\nbackend = \"job\"\n[limits]\nttl = \"3h\"\nmax_cost = \"5USD\"");
    let choose = |world: &World, flags| world.load(flags).expect("settings").choices(&job, Path::new("/jobs")).expect("choices");

    let world = World::new().project_file("backend = \"project\"\nttl = \"1h\"");
    let choices = choose(&world, Layer::default());
    assert_eq!((choices.backend.as_str(), choices.ttl.to_string().as_str()), ("job", "3h"));
    assert_eq!(choices.max_cost.map(String::from).as_deref(), Some("5USD"));

    assert_eq!(choose(&world, backend("flag")).backend, "flag");
    let world = world.set("FTCTL_TTL", "2h").set("FTCTL_MAX_COST", "1USD");
    let choices = choose(&world, Layer::default());
    assert_eq!((choices.backend.as_str(), choices.ttl.to_string().as_str()), ("job", "2h"));
    assert_eq!(choices.max_cost.map(String::from).as_deref(), Some("1USD"));
}

#[test]
fn a_relative_store_begins_where_it_was_written() {
    let store = |world: &World, text: &str| {
        world.load(Layer::default()).expect("settings").choices(&spec(text), Path::new("/jobs")).expect("choices").store
    };
    let world = World::new();
    assert_eq!(store(&world, ""), world.home().join(".local/state/ftctl/store").to_string_lossy());
    assert_eq!(store(&world, "store = \"here\""), "/jobs/here");
    assert_eq!(store(&world, "store = \"az://account/container\""), "az://account/container");
    let world = world.user("store = \"s\"");
    assert_eq!(store(&world, ""), world.home().join(".config/ftctl/s").to_string_lossy());
    let world = world.project_file("store = \"s\"");
    assert_eq!(store(&world, ""), world.project().join("s").to_string_lossy());
    let world = world.set("FTCTL_STORE", "../s");
    assert_eq!(store(&world, "store = \"here\""), world.project().join("../s").to_string_lossy());
}

#[test]
fn a_mistaken_address_is_joined_to_no_directory() {
    let given = |world: World, flags| world.load(flags).expect("settings").store.value.expect("a store");
    let none = Layer::default;
    for address in
        ["acc.blob.core.windows.net/box", "azure:acc/box", "https:/acc.blob.core.windows.net/box", "file:/s", "~/s", " s"]
    {
        let file = format!("store = \"{address}\"");
        let flags = Layer { store: Some(address.to_owned()), ..none() };
        assert_eq!(given(World::new(), flags), address);
        assert_eq!(given(World::new().set("FTCTL_STORE", address), none()), address);
        assert_eq!(given(World::new().user(&file), none()), address);
        assert_eq!(given(World::new().project_file(&file), none()), address);
        let choices = World::new().load(none()).expect("settings").choices(&spec(&file), Path::new("/jobs"));
        assert_eq!(choices.expect("choices").store, address);
    }
    let world = World::new();
    let flags = Layer { store: Some("./azure:acc".to_owned()), ..none() };
    let directory = world.project().join("azure:acc");
    assert_eq!(Path::new(&given(world, flags)), directory);
}

#[test]
fn mistakes_in_files_have_a_place_and_mistakes_in_variables_a_name() {
    let message = |world: World| world.load(Layer::default()).expect_err("a mistake").to_string();
    let text = message(World::new().user("backend = \"local\"\nbakend = 1"));
    assert!(text.contains("config.toml:2:1: unknown key `bakend` at the top of the file"), "{text}");
    let text = message(World::new().user("[profiles.p]\nttl = \"5w\""));
    assert!(text.contains("config.toml:2:7: profiles.p.ttl: `5w` is not a duration"), "{text}");
    let text = message(World::new().project_file("[profiles.p]\nttl = \"5h\""));
    assert!(text.contains("ftctl.toml:1:2: unknown key `profiles`"), "{text}");
    assert!(message(World::new().set("FTCTL_TTL", "5w")).starts_with("FTCTL_TTL: `5w` is not a duration"));
    assert!(message(World::new().set("FTCTL_OUTPUT", "yaml")).starts_with("FTCTL_OUTPUT: `yaml` is not one of its values"));
    let text = message(World::new().user("[profiles.prod]\n").set("FTCTL_PROFILE", "prd"));
    assert_eq!(text, "there is no profile `prd` (from environment FTCTL_PROFILE)");
}

#[test]
fn directories_follow_the_xdg_rules() {
    let resolve = |variables: &[(&str, &Path)], home: Option<&Path>| {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        Directories::resolve(&Surroundings { variable: &variable, home: home.map(PathBuf::from), working_directory: "/".into() })
    };
    let place = tempfile::tempdir().expect("a directory");
    let (home, elsewhere) = (place.path().join("home"), place.path().join("var/state"));
    let usual = resolve(&[], Some(&home));
    assert_eq!(usual.config(), Some(home.join(".config/ftctl").as_path()));
    assert!(!home.exists(), "nothing is made before it is used");
    assert_eq!(usual.state().expect("a place"), home.join(".local/state/ftctl"));
    assert_eq!(usual.cache().expect("a place"), home.join(".cache/ftctl"));
    let moved = resolve(&[("XDG_STATE_HOME", &elsewhere), ("XDG_CACHE_HOME", Path::new("relative"))], Some(&home));
    assert_eq!(moved.state().expect("a place"), elsewhere.join("ftctl"));
    assert_eq!(moved.cache().expect("a place"), home.join(".cache/ftctl"), "a relative value is ignored");
    let homeless = resolve(&[("XDG_STATE_HOME", &elsewhere)], None);
    assert_eq!(homeless.config(), None);
    assert!(homeless.state().is_ok());
    assert!(homeless.cache().expect_err("no place").to_string().contains("XDG_CACHE_HOME"));
}

#[test]
fn what_ftctl_keeps_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().expect("a directory");
    let directories = Directories::resolve(&Surroundings {
        variable: &|_| None,
        home: Some(home.path().to_owned()),
        working_directory: "/".into(),
    });
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let state = directories.state().expect("a place");
    assert_eq!(mode(state), 0o700);
    std::fs::set_permissions(state, std::fs::Permissions::from_mode(0o755)).expect("changed");
    assert_eq!(mode(directories.state().expect("a place")), 0o700, "one of an earlier version");
    assert_eq!(mode(directories.cache().expect("a place")), 0o700);
}
