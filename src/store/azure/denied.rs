//! Advice about a request that the service denied: a role, a permission of the signature, or time. The codes are those of
//! "Authorization and authentication errors" and "Common REST API error codes" in the reference of the storage services.

use jiff::Timestamp;
use reqwest::Url;

use super::sign_in::Credential;

/// A sentence for the user: what is missing, as far as the error's code and the credential tell.
pub(super) fn advice(credential: &Credential, account: &str, action: &str, code: &str, now: Timestamp) -> String {
    let by_code = match code {
        // An emulator says so of a wrong key too.
        "AuthorizationFailure" if matches!(credential, Credential::Key(_)) => Some(
            "the firewall of the account blocks this network (allow it under Networking), or the key is not this account's: \
             `ftctl doctor` shows which sign-in is used",
        ),
        "AuthorizationFailure" => Some("the firewall of the account blocks this network: allow it under Networking"),
        "KeyBasedAuthenticationNotPermitted" => Some("the account takes no keys: sign in with `az login`"),
        "AccountIsDisabled" => Some("the account is disabled: its subscription may have ended"),
        "AuthorizationProtocolMismatch" => Some("the signature is for https alone"),
        "AuthorizationSourceIPMismatch" => Some("the signature is for other addresses than this machine's (its `sip`)"),
        "RequestTimeTooSkewed" => Some("the clock of this machine is wrong by more than 15 minutes"),
        _ => None,
    };
    if let Some(advice) = by_code {
        return advice.to_owned();
    }
    let by_sign_in = match credential {
        Credential::Sas(signature) => of_signature(signature, action, code, now),
        Credential::Token(source) if code == "AuthorizationPermissionMismatch" => {
            Some(of_role(source.object_id().as_deref(), account))
        }
        Credential::Key(_) if code == "AuthenticationFailed" => {
            Some("the key is not one of this account's two keys, or this machine's clock is wrong".to_owned())
        }
        Credential::Token(_) | Credential::Key(_) => None,
    };
    by_sign_in.unwrap_or_else(|| "`ftctl doctor` shows which sign-in is used".to_owned())
}

/// The role that an identity lacks.
fn of_role(identity: Option<&str>, account: &str) -> String {
    const ROLE: &str = "Storage Blob Data Contributor";
    let who = identity.unwrap_or("OBJECT_ID");
    format!(
        "the identity needs the role `{ROLE}` on the account or the container: `az role assignment create --assignee {who} --role \"{ROLE}\" \
         --scope \"$(az storage account show --name {account} --query id --output tsv)\"`; Owner and Contributor of the account do not \
         include it, and a new role counts after up to 10 minutes"
    )
}

/// Time first: a signature that is over is denied whatever it permits.
fn of_signature(signature: &str, action: &str, code: &str, now: Timestamp) -> Option<String> {
    let parameter = |name: &str| {
        let url = Url::parse(&format!("http://x?{signature}")).ok()?;
        url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    };
    // A date alone is its beginning.
    let time = |name| {
        let text = parameter(name)?;
        let text = if text.contains('T') { text } else { format!("{text}T00:00:00Z") };
        text.parse::<Timestamp>().ok()
    };
    if let Some(end) = time("se").filter(|end| *end <= now) {
        return Some(format!("the signature ended at {end}: make a new one"));
    }
    if let Some(start) = time("st").filter(|start| *start > now) {
        return Some(format!("the signature begins at {start}"));
    }
    match code {
        "AuthorizationPermissionMismatch" => {
            let (has, needs) = (parameter("sp").unwrap_or_default().escape_default().to_string(), letters(action));
            Some(format!("the signature permits `{has}` (its `sp`), and to {action} needs {needs}: make one with `racwdl`"))
        }
        "AuthorizationServiceMismatch" => Some("the signature is for another service than blobs (its `ss`)".to_owned()),
        "AuthorizationResourceTypeMismatch" => {
            Some("the signature is for other things than containers and blobs (its `srt`): make one with `srt=co`".to_owned())
        }
        "AuthenticationFailed" => {
            Some("the signature does not match: it was made for another container, or with a key that was renewed since".to_owned())
        }
        _ => None,
    }
}

fn letters(action: &str) -> &'static str {
    match action {
        "read" => "`r`",
        "list" => "`l`",
        "delete" => "`d`",
        "append to" => "`a` or `w`",
        _ => "`c` and `w`",
    }
}

#[cfg(test)]
mod tests {
    use super::{super::shared_key::SharedKey, *};

    #[test]
    fn each_denial_says_what_is_missing() {
        let now: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let sas = |text: &str| Credential::Sas(text.to_owned());
        let key = || Credential::Key(SharedKey::new("acc", "a2V5").unwrap());
        let rows = [
            (sas("se=2026-11-20T09%3A00%3A00Z&sp=racwdl&sig=x"), "write", "AuthenticationFailed", "ended at 2026-11-20T09:00:00Z"),
            (sas("se=2026-11-20&sig=x"), "write", "AuthenticationFailed", "ended at 2026-11-20T00:00:00Z"),
            (sas("st=2026-11-21T09%3A00%3A00Z&sig=x"), "read", "AuthenticationFailed", "begins at 2026-11-21T09:00:00Z"),
            (
                sas("sp=rl&sig=x"),
                "write",
                "AuthorizationPermissionMismatch",
                "permits `rl` (its `sp`), and to write needs `c` and `w`",
            ),
            (sas("sp=rw&sig=x"), "list", "AuthorizationPermissionMismatch", "to list needs `l`"),
            (sas("sp=rl&sig=x"), "delete", "AuthorizationPermissionMismatch", "to delete needs `d`"),
            (sas("ss=q&sig=x"), "read", "AuthorizationServiceMismatch", "another service"),
            (sas("srt=s&sig=x"), "read", "AuthorizationResourceTypeMismatch", "srt=co"),
            (sas("sr=c&sig=x"), "read", "AuthenticationFailed", "another container"),
            (sas("sig=x"), "read", "AuthorizationProtocolMismatch", "https alone"),
            (sas("sig=x"), "read", "Unheard", "ftctl doctor"),
            (key(), "read", "AuthenticationFailed", "this account's two keys"),
            (key(), "read", "KeyBasedAuthenticationNotPermitted", "az login"),
            (key(), "read", "AuthorizationFailure", "firewall"),
            (key(), "read", "AuthorizationFailure", "the key is not this account's"),
            (sas("sig=x"), "read", "AuthorizationFailure", "under Networking"),
            (key(), "read", "RequestTimeTooSkewed", "clock"),
        ];
        for (credential, action, code, says) in rows {
            let said = advice(&credential, "acc", action, code, now);
            assert!(said.contains(says), "{code}: {said}");
        }
        let (known, unknown) = (of_role(Some("11059fcc"), "acc"), of_role(None, "acc"));
        let command = "az role assignment create --assignee 11059fcc --role \"Storage Blob Data Contributor\" --scope \"$(az storage account \
                       show --name acc --query id --output tsv)\"";
        assert!(known.contains(command) && unknown.contains("--assignee OBJECT_ID "), "{known}");
    }
}
