//! `makbuz rejections`: recent refused requests.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use super::api::Api;
use super::output::{self, Table, say, short_time};
use crate::admin::view::RejectionJson;

#[derive(Debug, Args)]
pub(crate) struct RejectionsArgs {
    /// 1 to 500
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// The API's answer as it is
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &Context, args: RejectionsArgs) -> anyhow::Result<ExitCode> {
    let api = Api::reach(context).await?;
    let done = list(&api, &args).await;
    api.close().await;
    done.map(|()| ExitCode::SUCCESS)
}

async fn list(api: &Api, args: &RejectionsArgs) -> anyhow::Result<()> {
    let answer = api.get(&format!("/v1/rejections?limit={}", args.limit)).await?;
    if args.json {
        return output::json(&answer);
    }
    let rejections: Vec<RejectionJson> = serde_json::from_value(answer["rejections"].clone())?;
    let mut table = Table::new(["AT", "SOURCE", "CODE", "PEER", "PATH", "DETAIL"]);
    for rejection in rejections {
        table.row([
            short_time(&rejection.at),
            rejection.source,
            rejection.code,
            rejection.peer,
            format!("{} {}", rejection.method, rejection.path),
            rejection.detail,
        ]);
    }
    if table.is_empty() {
        output::complain("nothing was refused lately");
    } else {
        say(table);
    }
    Ok(())
}
