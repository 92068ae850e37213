"""Signs requests with the providers' official Python SDKs.

Reads one JSON object a line: provider, secret, time (unix seconds), url, id, body_base64.
Writes one JSON object a line: method, url, headers (a list of [name, value]), body_base64.
"""

import base64
import datetime
import json
import sys
import urllib.parse

import stripe
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook
from twilio.request_validator import RequestValidator

JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")


def sign_stripe(order, body):
    header = stripe.WebhookSignature.generate_signature_header(body, order["secret"], order["time"])
    return order["url"], [JSON, ("Stripe-Signature", header)]


def sign_standard_webhooks(order, body):
    at = datetime.datetime.fromtimestamp(order["time"], tz=datetime.timezone.utc)
    signature = Webhook(order["secret"]).sign(order["id"], at, body)
    return order["url"], [
        JSON,
        ("webhook-id", order["id"]),
        ("webhook-timestamp", str(order["time"])),
        ("webhook-signature", signature),
    ]


def sign_slack(order, body):
    at = str(order["time"])
    signature = SignatureVerifier(order["secret"]).generate_signature(timestamp=at, body=body)
    return order["url"], [JSON, ("X-Slack-Request-Timestamp", at), ("X-Slack-Signature", signature)]


def sign_twilio(order, body):
    fields = dict(urllib.parse.parse_qsl(body, keep_blank_values=True))
    signature = RequestValidator(order["secret"]).compute_signature(order["url"], fields)
    return order["url"], [FORM, ("X-Twilio-Signature", signature)]


def sign_twilio_json(order, body):
    """A JSON body is covered by its digest in the signed URL."""
    validator = RequestValidator(order["secret"])
    url = order["url"] + "?bodySHA256=" + validator.compute_hash(body)
    return url, [JSON, ("X-Twilio-Signature", validator.compute_signature(url, {}))]


SIGNERS = {
    "slack": sign_slack,
    "standard-webhooks": sign_standard_webhooks,
    "stripe": sign_stripe,
    "twilio": sign_twilio,
    "twilio-json": sign_twilio_json,
}


def main():
    for line in sys.stdin:
        order = json.loads(line)
        body = base64.b64decode(order["body_base64"]).decode("utf-8")
        url, headers = SIGNERS[order["provider"]](order, body)
        answer = {"method": "POST", "url": url, "headers": headers, "body_base64": order["body_base64"]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
