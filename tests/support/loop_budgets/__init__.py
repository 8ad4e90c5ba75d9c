"""Measures for how long one request keeps an event loop from all other work, with the largest legal requests.

`turn_meter` measures the turns of a loop, `measuring` sends requests, and `broker_requests`,
`nameserver_requests` and `controller_requests` hold the largest request of each code and the processes that
serve them. `page` writes docs/develop/loop-budgets.md.
"""
