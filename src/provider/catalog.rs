//! The provider files: those in the binary, and those in a folder that the operator names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::definition::Definition;
use super::expr::nearest;
use super::spec::SpecError;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../providers/", $name, ".toml")))),*]
    };
}

/// A test compares this list with the folder.
const EMBEDDED: &[(&str, &str)] = embedded![
    "adyen",
    "adyen-platform",
    "affirm",
    "airwallex",
    "akahu-payments",
    "akbank-vpos",
    "authorize-net",
    "basic",
    "bluesnap",
    "bolt",
    "braintree",
    "bridge-xyz",
    "btcpay",
    "cashfree",
    "chargebee",
    "checkout-com",
    "coinbase-commerce",
    "coinify",
    "craftgate",
    "cryptopay",
    "datatrans",
    "discord",
    "dlocal",
    "doku",
    "dwolla",
    "fintoc",
    "flutterwave-v3",
    "garanti-vpos",
    "github",
    "gocardless",
    "hepsiburada",
    "hipay",
    "hitpay",
    "hmac",
    "increase",
    "interswitch",
    "iyzico",
    "klarna",
    "korapay",
    "lemon-squeezy",
    "mastercard-gateway",
    "mercado-pago",
    "midtrans-snap-bi",
    "modern-treasury",
    "mollie-classic",
    "mollie-nextgen",
    "monei",
    "monnify",
    "moonpay",
    "moyasar",
    "nestpay-v3",
    "nmi",
    "noon",
    "novalnet",
    "omise",
    "opay",
    "opennode",
    "paddle",
    "pagbank",
    "param",
    "paymongo",
    "paynkolay",
    "paynow-pl",
    "paystack",
    "paytr",
    "paytr-platform",
    "payu",
    "pensopay",
    "polar",
    "ppro",
    "primer",
    "quickpay",
    "rapyd",
    "razorpay",
    "recurly",
    "revolut",
    "sendgrid",
    "shopier",
    "shopify",
    "slack",
    "solidgate",
    "square",
    "square-legacy",
    "standard-webhooks",
    "stripe",
    "svix",
    "tabapay",
    "tebex",
    "token",
    "trendyol",
    "twilio",
    "unit",
    "upayments",
    "wise",
    "woovi",
    "worldline-connect",
];

/// Known definitions by name. Each file is compiled when it is first asked for.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    files: BTreeMap<String, File>,
}

#[derive(Debug, Clone)]
struct File {
    place: String,
    text: Arc<str>,
}

impl Catalog {
    /// The files in the binary.
    pub fn embedded() -> Self {
        let mut catalog = Self::default();
        for (name, text) in EMBEDDED {
            catalog.insert(name, format!("providers/{name}.toml"), text);
        }
        catalog
    }

    /// Adds every `*.toml` of a folder; a file of the same name replaces the one in the binary.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), Vec<SpecError>> {
        let unreadable =
            |path: &Path, error: std::io::Error| SpecError::new(&path.display().to_string(), "", error.to_string());
        let entries = std::fs::read_dir(folder).map_err(|error| vec![unreadable(folder, error)])?;
        let mut errors = Vec::new();
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    errors.push(unreadable(folder, error));
                    continue;
                }
            };
            let Some(name) = path
                .file_stem()
                .and_then(|stem| stem.to_str())
                .filter(|_| path.extension().is_some_and(|end| end == "toml"))
            else {
                continue;
            };
            match std::fs::read_to_string(&path) {
                Ok(text) => self.insert(name, path.display().to_string(), &text),
                Err(error) => errors.push(unreadable(&path, error)),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Adds one file's text.
    pub fn insert(&mut self, name: &str, place: String, text: &str) {
        self.files.insert(name.to_owned(), File { place, text: text.into() });
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The compiled definition of this name.
    pub fn get(&self, name: &str) -> Result<Definition, Vec<SpecError>> {
        let Some(file) = self.files.get(name) else {
            let near = nearest(name, self.names()).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            return Err(vec![SpecError::new(name, "", format!("no provider has this name{near}"))]);
        };
        let definition = Definition::compile(&file.place, &file.text)?;
        if definition.name() == name {
            Ok(definition)
        } else {
            Err(vec![SpecError::new(&file.place, "name", format!("`{}` is not the file's name", definition.name()))])
        }
    }

    /// Compiles everything; all mistakes of all files.
    pub fn check(&self) -> Result<Vec<Definition>, Vec<SpecError>> {
        let mut definitions = Vec::new();
        let mut errors = Vec::new();
        for name in self.names() {
            match self.get(name) {
                Ok(definition) => definitions.push(definition),
                Err(mistakes) => errors.extend(mistakes),
            }
        }
        if errors.is_empty() { Ok(definitions) } else { Err(errors) }
    }
}
