//! A certificate for one run of a simulated cloud, for clients that send no token by plain http, not even to this computer.

use std::{io, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

pub struct Tls {
    pub acceptor: TlsAcceptor,
    /// The certificate that its clients must trust, as PEM. Its key is not kept.
    pub authority: String,
}

impl Tls {
    pub fn new() -> io::Result<Self> {
        let (authority, leaf, key) = certificates().map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(io::Error::other)?.with_no_client_auth();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let config = builder.with_single_cert(vec![leaf.der().clone()], key).map_err(io::Error::other)?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), authority: authority.pem() })
    }
}

/// The authority's, and that of this computer, with its key.
fn certificates() -> Result<(rcgen::Certificate, rcgen::Certificate, KeyPair), rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ftctl devcloud, for one run");
    let key = KeyPair::generate()?;
    let authority = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let leaf = params.signed_by(&key, &issuer)?;
    Ok((authority, leaf, key))
}
