"""`fence` and `writes`: fencing.md, and docs/history.md, "Events of the resource"."""


def fence(book, story, bounds):
    """The resource keeps the largest token of each key and refuses smaller ones, in its own order."""
    largest, last = {}, None
    for event in sorted(story.judged, key=lambda event: event.values["order"]):
        book.look()
        if last is not None and event.values["order"] == last.values["order"]:
            book.find(event, f"order {event.values['order']} is there twice")
        if last is not None and event.time < last.time:
            book.find(event, f"order {event.values['order']} is earlier than {last.values['order']}")
        last = event
        values = event.values
        known = largest.get(values["key"], 0)
        about = story.attempts.get((values["by"], values["attempt"]))
        about = (about,) if about else ()
        if values["accepted"] and values["token"] < known:
            book.find(event, f"{values['token']} was accepted on {values['key']} after {known}", *about)
        elif not values["accepted"] and values["token"] >= known:
            book.find(event, f"{values['token']} was refused on {values['key']}, and the largest was {known}", *about)
        largest[values["key"]] = max(known, values["token"])


def writes(book, story, bounds):
    """Each judged write is one of a hold, with its token and key; each answer is one that was judged."""
    for event in story.judged:
        book.look()
        values = event.values
        hold = story.attempts.get((values["by"], values["attempt"]))
        if hold is None or not hold.granted:
            book.find(event, f"{values['by']} attempt {values['attempt']} wrote and was granted nothing")
        elif values["token"] != hold.token or values["key"] != hold.key:
            book.find(event, f"{hold} wrote with token {values['token']} on {values['key']}, and was granted {hold.token} on {hold.key}", hold)
        elif event.time < hold.granted.time:
            book.find(event, f"{hold} wrote before it was granted", hold)
    for hold in story.all_holds():
        judged = iter(hold.judged)
        for event in hold.writes:
            book.look()
            answer = next((j for j in judged if j.values["token"] == event.values["token"]
                           and j.values["accepted"] == event.values["accepted"]), None)
            if event.values["token"] != hold.token:
                book.find(event, f"{hold} wrote with the token {event.values['token']}, and was granted {hold.token}", hold)
            elif answer is None or answer.time > event.time:
                book.find(event, f"the answer to a write of {hold} is none that was judged before it", hold)
                break
