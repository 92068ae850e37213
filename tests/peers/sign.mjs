// Signs requests with GitHub's official package. The same lines in and out as sign.py.

import { Buffer } from "node:buffer";
import process from "node:process";
import readline from "node:readline";

import { sign } from "@octokit/webhooks-methods";

for await (const line of readline.createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  const body = Buffer.from(order.body_base64, "base64").toString("utf8");
  const headers = [
    ["Content-Type", "application/json"],
    ["X-GitHub-Event", "push"],
    ["X-GitHub-Delivery", order.id],
    ["X-Hub-Signature-256", await sign(order.secret, body)],
  ];
  console.log(JSON.stringify({ method: "POST", url: order.url, headers, body_base64: order.body_base64 }));
}
