"""APScheduler in several processes: each schedules the job, and one of them runs it in each period."""

import sys
import threading

from apscheduler.schedulers.background import BackgroundScheduler

import latchwork

locks = latchwork.connect(namespace="jobs")
tried = threading.Event()


@locks.once("mail", every="1h")
def send_mail():
    print("sent", flush=True)


def job():
    outcome = send_mail()
    if not outcome:
        print("skipped:", outcome.skipped.why, flush=True)
    tried.set()


scheduler = BackgroundScheduler()
scheduler.add_job(job, "interval", seconds=0.2)
scheduler.start()
tried.wait(20)
scheduler.shutdown()
sys.exit(0 if tried.is_set() else 1)
