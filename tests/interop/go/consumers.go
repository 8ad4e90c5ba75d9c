package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// lastTime is later than every message.
const lastTime = 24 * time.Hour

func consumerOptions(p plan) []consumer.Option {
	options := []consumer.Option{
		consumer.WithNsResolver(nameserver),
		consumer.WithGroupName(p.Group),
		consumer.WithCredentials(p.credentials()),
		consumer.WithConsumerOrder(p.Orderly),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	if p.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if p.ReconsumeMax > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(p.ReconsumeMax))
	}
	return options
}

func selector(p plan) consumer.MessageSelector {
	if p.SQL {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: p.Expression}
	}
	expression := p.Expression
	if expression == "" {
		expression = "*"
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

// describe is a received message as plain data.
func describe(m *primitive.MessageExt) line {
	return line{
		"topic": m.Topic, "body": string(m.Body), "tags": m.GetTags(), "keys": m.GetKeys(), "msg_id": m.MsgId,
		"offset_msg_id": m.OffsetMsgId, "queue_id": m.Queue.QueueId, "queue_offset": m.QueueOffset,
		"reconsume_times": m.ReconsumeTimes, "properties": m.GetProperties(),
		"born_timestamp": m.BornTimestamp, "store_timestamp": m.StoreTimestamp,
	}
}

// fails tells whether the consumption of the message is to fail.
func (p plan) fails(m *primitive.MessageExt) bool {
	return m.ReconsumeTimes < p.Failures[string(m.Body)]
}

// consume prints what a push consumer gets.
func consume(p plan) error {
	return push(p, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failed := false
		for _, m := range messages {
			tell(describe(m))
			failed = failed || p.fails(m)
		}
		if !failed {
			return consumer.ConsumeSuccess, nil
		}
		if orderly, is := primitive.GetOrderlyCtx(ctx); is {
			orderly.SuspendCurrentQueueTimeMillis = 100
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if concurrently, is := primitive.GetConcurrentlyCtx(ctx); is {
			concurrently.DelayLevelWhenNextConsume = 1
		}
		return consumer.ConsumeRetryLater, nil
	})
}

// reply answers each message by one with its body and "answered".
func reply(p plan) error {
	client, err := rocketmq.NewProducer(producerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	return push(p, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			// The client would parse a body as properties, and leave the reply empty.
			answer, err := consumer.CreateReplyMessage(m, nil)
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			answer.Body = []byte(string(m.Body) + " answered")
			if _, err = client.SendSync(ctx, answer); err != nil {
				tell(line{"body": string(m.Body), "error": err.Error()})
			}
		}
		return consumer.ConsumeSuccess, nil
	})
}

type callback func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// push runs a push consumer until the input ends.
func push(p plan, take callback) error {
	client, err := rocketmq.NewPushConsumer(consumerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Subscribe(p.Topic, selector(p), take); err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	runUntilEnd()
	return client.Shutdown()
}

// pull prints what every queue has, from its first message to its last.
func pull(p plan) error {
	client, err := rocketmq.NewPullConsumer(consumerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Subscribe(p.Topic, selector(p)); err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	queues, err := client.GetTopicRouteInfo(p.Topic)
	if err != nil {
		return err
	}
	ctx := context.Background()
	for _, queue := range queues {
		next, err := client.OffsetForTimestamp(queue, 0)
		if err != nil {
			return err
		}
		end, err := client.OffsetForTimestamp(queue, time.Now().Add(lastTime).UnixMilli())
		if err != nil {
			return err
		}
		for next < end {
			result, err := client.PullFrom(ctx, queue, next, 32)
			if err != nil {
				return err
			}
			for _, m := range result.GetMessageExts() {
				tell(describe(m))
			}
			next = result.NextBeginOffset
		}
	}
	return client.Shutdown()
}

// poll prints what a pull consumer with a subscription gets, and acknowledges it.
func poll(p plan) error {
	client, err := rocketmq.NewPullConsumer(consumerOptions(p)...)
	if err != nil {
		return err
	}
	if err = client.Subscribe(p.Topic, selector(p)); err != nil {
		return err
	}
	if err = client.Start(); err != nil {
		return err
	}
	tell(line{"ready": true})
	ctx, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		end()
	}()
	for ctx.Err() == nil {
		polled, err := client.Poll(ctx, time.Second)
		if errors.Is(err, consumer.ErrNoNewMsg) {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range polled.GetMsgList() {
			tell(describe(m))
		}
		client.ACK(ctx, polled, consumer.ConsumeSuccess)
	}
	return client.Shutdown()
}
