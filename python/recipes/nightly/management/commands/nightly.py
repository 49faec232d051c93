"""A management command of Django that cron starts on every host, and that runs on one of them each day."""

from django.core.management.base import BaseCommand

import latchwork


class Command(BaseCommand):
    help = "Sends the nightly report, once a day."

    def handle(self, *args, **options):
        with latchwork.connect(namespace="shop") as locks:
            with locks.once("nightly", every="1d", tz="Europe/Berlin") as run:
                if not run:
                    self.stdout.write(f"skipped: {run}")
                    return
                self.stdout.write(f"sent under token {run.ensure_held()}")
