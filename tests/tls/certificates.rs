//! Certificates for one test.

use leasehold::TlsOptions;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use leasehold_support::ServerCertificate;

/// An authority that signs what it is asked to.
pub(crate) struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// What a client needs in order to trust what it has signed.
    pub(crate) fn trusted(&self) -> TlsOptions {
        TlsOptions::new().ca_certificate_pem(self.pem())
    }

    /// Certificates of servers at `localhost` that such a client must not accept, each with what it is told.
    #[allow(dead_code, reason = "the tests of Redis take them one by one")]
    pub(crate) fn unacceptable(&self) -> [(Signed, &'static str); 3] {
        [
            (
                Self::new("theirs").sign(&["localhost"]),
                "TLS: the server's certificate is not signed by a known authority",
            ),
            (self.sign(&["elsewhere"]), "TLS: the server's certificate is for another host name"),
            (self.sign_expired(&["localhost"]), "TLS: the server's certificate has expired"),
        ]
    }

    pub(crate) fn sign(&self, hosts: &[&str]) -> Signed {
        self.sign_with(params("server", hosts))
    }

    pub(crate) fn sign_expired(&self, hosts: &[&str]) -> Signed {
        let mut params = params("server", hosts);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 1, 2);
        self.sign_with(params)
    }

    fn sign_with(&self, params: CertificateParams) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Signed { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// For a server that is called `localhost` and asks for no client certificate.
    pub(crate) fn server(&self) -> ServerCertificate {
        self.server_with(self.sign(&["localhost"]), false)
    }

    /// With this certificate. If clients need one, this authority must have signed it.
    pub(crate) fn server_with(
        &self,
        Signed { certificate, key }: Signed,
        required: bool,
    ) -> ServerCertificate {
        ServerCertificate { certificate, key, authority: self.pem(), required }
    }
}

fn params(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("valid names");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
